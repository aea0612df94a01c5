"""Curvature: for linear losses a certified model of the Hessian, for others Lanczos at a point.

- `model`: arrow-shaped lower and upper bounds of ∇²F, returned by an objective's `curvature(clients)`;
- `bounds`: the sharp constants, each row's smoothness, and the arrow for μ and ν, all computed from the model;
- `metric`: changes of variables in which every block of ∇²F is at most I; `choice`: which of them to use;
- `certificate`: an upper bound on F − F*;
- `local`: the curvature at a point, where there is no formula.
"""

from twofold.curvature.local import STEPS, largest_eigenvalue, largest_of_loss, real_weight

__all__ = ["STEPS", "largest_eigenvalue", "largest_of_loss", "real_weight"]
