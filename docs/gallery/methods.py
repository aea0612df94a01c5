"""# Three methods, and what theory says of them

No step size is set here: every number comes from the problem's constants. The band is over seeds. ACD and ASVRCD go to the
optimum at a rate that is proven; LSGD, which is FedAvg with a private part, stops short of it, because it samples rows. The dotted
lines are what the theorems guarantee, so a method may be faster but not slower, on average.
"""

import jax

jax.config.update("jax_enable_x64", True)  # gaps down to 1e-14 need double precision

import twofold as tw

made = tw.data.synthetic.mixture(sigma_h=0.3, clients=6, rows=40, features=5)
objective = tw.objectives.mixture(tw.losses.logistic(l2=0.02), lam=0.1)
problem = tw.Problem(objective, tw.Clients.from_list(made.clients))
print(problem.constants())
print(tw.theory.forecast(problem, 1e-6, ["acd", "asvrcd", "lsgd"]))

runs = {name: tw.solve(problem, name, rounds=120, seeds=6) for name in ("acd", "asvrcd", "lsgd")}
figure = tw.plot(runs, problem, title="Nothing tuned: all steps from theory")
