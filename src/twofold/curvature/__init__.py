"""Curvature: a certified model of the Hessian where the loss is linear, Lanczos at a point where it is not.

- `model`: the arrows below and above ∇²F that an objective's `curvature(clients)` gives;
- `bounds`: from it the sharp constants, the smoothness of every row, and the arrow for μ and ν;
- `metric`: a change of variables in which every block of ∇²F is at most I, and `choice`: which one to take;
- `certificate`: how far F is at most from its minimum;
- `local`: the curvature at a point, where there is no formula.
"""

from twofold.curvature.local import STEPS, largest_eigenvalue, largest_of_loss, real_weight

__all__ = ["STEPS", "largest_eigenvalue", "largest_of_loss", "real_weight"]
