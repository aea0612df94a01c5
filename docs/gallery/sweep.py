"""# A sweep, and which value is best

`twofold sweep` runs a file for every combination of some values, each with as many seeds as one likes. The same command again
goes on where it was stopped. Here it is called from Python; on the command line it reads

    twofold sweep digits.toml --grid objective.lam=0.001,0.03,1,30 --seeds 2 --out sweep
"""

from pathlib import Path

from twofold.cli import app
from twofold.plots import plot
from twofold.report.runs import read_runs
from twofold.report.versus import labels

Path("digits.toml").write_text("""
[data]
source = "digits"
[partition]
clients = 8
train = 10
test = 30
[loss]
name = "softmax"
l2 = 0.01
[objective]
name = "mixture"
lam = 0.1
[algorithm]
name = "acd"
[stop]
rounds = 40
""")
app(
    ["sweep", "digits.toml", "--grid", "objective.lam=0.001,0.03,1,30", "--seeds", "2", "--out", "sweep"],
    standalone_mode=False,
)

runs = read_runs("sweep")
figure = plot({name: run.results for name, run in zip(labels(runs), runs)}, title="Four strengths of the pull")
