"""`twofold …`: the command line, one file for each group of commands.

Nothing heavy is imported before a command needs it, so that `twofold --help` is there at once. Nothing is computed in here:
every command prints what a function of the library gives, so that Python users reach the same.
"""

import typer

from twofold.cli import compare, coordinator, demo, federation, listing, node, reproduce, run, sweep, theory
from twofold.cli.base import CODES, ENVIRONMENT, show_version

__all__ = ["app", "main"]

app = typer.Typer(
    name="twofold",
    help="Personalised federated learning: every client's model has a part shared by all and a part of its own.",
    epilog=f"{CODES}\n\n{ENVIRONMENT}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(show_version)
# In the order in which --help shows them.
app.command(epilog=CODES)(demo.demo)
app.command(epilog=f"{run.FORMAT}\n\n{CODES}")(run.run)
app.command(epilog=CODES)(sweep.sweep)
app.command(epilog=CODES)(compare.compare)
app.command(epilog=CODES)(compare.report)
app.command(epilog=CODES)(theory.theory)
app.command("list", epilog=CODES)(listing.list_)
app.command(epilog=CODES)(reproduce.reproduce)
app.add_typer(coordinator.study_app, name="study")
for command in (
    coordinator.serve,
    coordinator.status,
    node.key,
    node.check,
    node.join,
    node.model,
):
    app.command(epilog=federation.FEDERATION_CODES)(command)


def main() -> None:
    """The entry point of the command `twofold`."""
    app()
