"""The coordinator: it draws the coins, takes means of messages, keeps a log of them, and sees nothing else.

It talks to nodes through a `Grid`, three methods that any network can have. Whatever has to survive is one file a round, on the
disk before anybody hears of it: whoever comes back, node or coordinator, goes on from there.

This file is the course of a run. What it is made of: `roll` (who is there), `asking` (questions and answers), `sums` (what stands
behind masks), `means`, `rounds` (the log of them), `goodbyes` (the end).
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from twofold import randomness, storage, tree
from twofold.engines.schedule import footprint
from twofold.errors import TwofoldError
from twofold.federation import contract, store, sums, wire
from twofold.federation.account import Account
from twofold.federation.asking import Asking, Query
from twofold.federation.goodbyes import Goodbyes
from twofold.federation.grid import Grid
from twofold.federation.journal import Journal, Watch
from twofold.federation.means import Means
from twofold.federation.named import made
from twofold.federation.patience import Patience, Stopped
from twofold.federation.roll import Roll
from twofold.federation.rounds import Line, Rounds
from twofold.federation.steps import complete, rows_of
from twofold.federation.store import Arrays
from twofold.federation.study import Study
from twofold.federation.sums import Opening, Place, Sums, total
from twofold.federation.wire import VERSION, Note, Refused
from twofold.result import Result

__all__ = ["Coordinator"]


class Coordinator:
    """One study, from the first hello to the result; `run` again in the same folder goes on where it was.

    >>> import tempfile, numpy as np, twofold as tw
    >>> from twofold.federation import InProcess, Node, Seat, Study
    >>> clients = tw.Clients.from_list([(np.eye(2), [0, 1]), (np.eye(2), [1, 1])], names=["north", "south"])
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.5), lam=1.0), clients)
    >>> study = Study.of(problem, tw.algorithms.LSGD(eta=0.1), rounds=3)
    >>> folder = tempfile.mkdtemp()
    >>> nodes = [Node(Seat(study, name, clients[name].x, clients[name].y), f"{folder}/{name}") for name in study.names]
    >>> result = Coordinator(study, InProcess(nodes), f"{folder}/server").run()
    >>> result.ledger.rounds, result.w.shape, result.beta, nodes[0].model()[1].shape
    (3, (2,), None, (2,))
    """

    def __init__(
        self,
        study: Study,
        grid: Grid,
        folder: str | Path,
        *,
        patience: Patience | None = None,
        watch: Watch | None = None,
        stop_after: int | None = None,
    ) -> None:
        self.study, self.folder, self.stop_after = study, storage.made(folder), stop_after
        patience, self.journal = patience or Patience(), Journal(self.folder, watch)
        self.roll = Roll(study, grid, patience, self.journal, contract.nonce())
        self.asking = Asking(study, grid, patience, self.roll, self.journal, self._show)
        self.sums = Sums(study, self.asking, self.folder)
        self.seconds: list[float] = []
        self.rounds = study.rounds  # fewer once the gap is small enough
        self._stop: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None

    @property
    def contract(self) -> str:
        """The contract of this run; nothing before there is one."""
        return self.roll.contract

    @property
    def events(self) -> list[str]:
        """What has happened, in words."""
        return self.journal.events

    def _show(self, r: int, waiting: list[str]) -> None:
        """How far it is, for `twofold status` and the page."""
        study = self.study
        status = {
            "study": study.name, "round": min(r, self.rounds), "rounds": study.rounds, "over": r > self.rounds + 1,
            "tolerance": study.tolerance, "waiting": waiting, "clients": list(study.names), "seconds": self.seconds[-200:],
            "masks": study.masks, "missing": study.missing,
        }  # fmt: skip
        if self.contract:
            status |= self.account.so_far(self.log.lines, self._end or self._stop)
        self.journal.show(status)

    # --- before the first round -----------------------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self.folder / "contract.json"

    def _draw_up(self) -> None:
        """The contract of a new run, from what clients have told; its terms are sent, and the rest is nobody else's business."""
        study, told = self.study, self.roll.told
        algorithm, note = complete(study, told)
        if note is not None:
            self.journal.note(note)
        self.journal.note(f"all {study.M} clients are here: {algorithm.name} begins")
        if not study.masks:
            self.journal.note("no masks: the coordinator reads every client's messages, as docs/federation.md says")
        document = {
            **contract.terms(study, algorithm, self.roll.nonce, self.roll.commitments),
            "rows": [rows_of(study, told[n]) for n in study.names],
            "told": [_numbers(told[n]) for n in study.names],
            "epsilon": [told[n].get("epsilon", 0.0) for n in study.names],
        }
        store.replace_file(self._path, json.dumps(document, sort_keys=True).encode())

    def prepare(self) -> None:
        """What follows from the contract: the plan of the whole run, and the log so far."""
        document = json.loads(self._path.read_text())
        if document["study"] != self.study.digest:
            raise TwofoldError(f"{self._path} belongs to another study file: name another --out folder.")
        self.algorithm = tree.cast(made(document["algorithm"]))
        shapes = footprint(self.algorithm, self.study.stand_in)
        self.shape = shapes.message
        self.common = randomness.common(randomness.root(self.study.seed))
        self.account = Account(self.study, self.algorithm, shapes.parts, document)
        self.times = self.account.times
        text = contract.text_of(document)
        self.log = Rounds(self.folder / "log", text)
        self.means = Means(self.study, self.algorithm.name, self.log, self.journal)
        self.roll.contract, self.roll.nonce = text, document["nonce"]
        if (self.folder / "stop.json").exists():
            self._stop = stop = json.loads((self.folder / "stop.json").read_text())
            self.rounds = stop["round"]
        if (self.folder / "end.json").exists():
            self._end = json.loads((self.folder / "end.json").read_text())
        elif len(self.log):
            self.journal.note(f"resumed after round {len(self.log)}")

    # --- one round ------------------------------------------------------------------------------------------------------

    def _sends(self, t: int) -> Any:
        return self.algorithm.sends(self.algorithm.plan(self.common, jnp.int32(t)))

    def _records(self, r: int) -> bool:
        """Whether losses after round r − 1 are asked for with round r."""
        return self.study.records(r, r > self.rounds)

    def _question(self, r: int, base: int) -> tuple[int, bytes]:
        """Round r, or an earlier one on the way to it, for a node that has answered round `base`."""
        until, lines, arrays = self.log.since(base, r)
        last = until > self.rounds
        about = {
            "contract": self.contract, "round": until, "last": last,
            "t": self.account.end_of(self.rounds) if last else int(self.times[until - 1]),
            "lines": lines, "said": self.log.said[until - 1], "record": self._records(until),
        }  # fmt: skip
        return until, wire.question(self.study.digest, "round", about, arrays)

    def _due(self, r: int) -> dict[str, Any]:
        """The arrays of round r, in the order in which nodes put them behind their masks."""
        due = {} if r > self.rounds else wire.due(self._sends(int(self.times[r - 1])), self.shape)
        due = {name: due[name] for name in sorted(due)}
        return due | ({"report": np.zeros(2 + self.account.told_of_gap)} if self._records(r) else {})

    def _round(self, r: int) -> None:
        """Ask everybody, take the means of what came, and write them down."""
        began, due, begun = time.perf_counter(), self._due(r), self.sums.begun(r)
        self.asking.begin()
        answers = self._answers(r, due, begun)
        here, summed = self._here(r, due, answers, begun)
        names = [self.study.names[m] for m in here]
        if summed is None:
            mean, whole = self.means.in_the_open(due, answers, here)
        else:
            mean, whole = self.means.behind_masks(r, due, summed, here)
        about = self._about(r, mean.pop("report", None), names)
        if r > self.rounds:
            self._finish(about | {"closed": sorted({*names, *answers})})
        elif r > 1 and self._is_near(about):
            self._stop_before(r, about)
        else:
            t = int(self.times[r - 1])
            self.log.write(Line(t, about["here"], mean, whole, about | {"t": t}))
            self.sums.over()
        self.seconds.append(time.perf_counter() - began)

    def _answers(self, r: int, due: dict[str, Any], begun: Opening | None) -> dict[str, Note]:
        """What clients answer; who is behind is first told what it has missed."""
        reached = dict.fromkeys(self.study.names, r - 1)
        asked_for: dict[str, int] = {}
        questions: dict[int, tuple[int, bytes]] = {}  # who is equally far is asked the same: it is put together once

        def ask(name: str) -> bytes:
            base = reached[name]
            if base not in questions:
                questions[base] = self._question(r, base)
            asked_for[name], content = questions[base]
            return content

        def accept(name: str, answer: Note) -> bool:
            asked, about = asked_for[name], answer.about
            if about.get("round") != asked:
                raise Refused(name, f"answered round {about.get('round')}, asked was {asked}")
            if "behind" in about:
                found = reached[name] = wire.whole_in(name, about, "behind", 0, r - 1)
                self.journal.note(
                    f"round {r}: {name} is at round {found} and gets the means since then", client=name, round=r
                )
                return False
            if asked < r:
                reached[name] = asked
                return False
            self._check(name, due, answer.arrays)
            return True

        names = list(self.study.names)
        return self.asking.collect(Query(r, "round", names, begun.names if begun else names, ask, accept))

    def _check(self, name: str, due: dict[str, Any], arrays: Arrays) -> None:
        """Exactly what is due, in the form in which it is due."""
        if not self.study.masks:
            wire.check(name, due, arrays, self.study.most)
        elif due:
            wire.check(name, sums.wanted(self.study, self.study.names.index(name), due), arrays)
        elif arrays:
            raise Refused(name, f"sent the parts {sorted(arrays)}, due is nothing")

    def _here(
        self, r: int, due: dict[str, Any], answers: dict[str, Note], begun: Opening | None
    ) -> tuple[list[int], Arrays | None]:
        """Whose messages count, by position; and where there are masks the sum behind them."""
        if self.study.masks and due and self.study.missing == "skip":
            return self.sums.of(Place(self.contract, r, self.log.said[r - 1]), due, answers, begun)
        here = sorted(self.study.names.index(name) for name in answers)
        if not (self.study.masks and due):
            return here, None
        return here, total([answer.arrays["masked"] for answer in answers.values()], due)

    # --- the end of a round ---------------------------------------------------------------------------------------------

    def _about(self, r: int, report: np.ndarray | None, names: list[str]) -> dict[str, Any]:
        """What is written down beside the means: who was in them, bytes, and what was told."""
        everybody = len(names) == self.study.M
        about: dict[str, Any] = {
            "v": VERSION, "round": r, "here": None if everybody else [self.study.names.index(n) for n in names],
            "up": self.asking.up, "down": self.asking.down, "time": time.time(),
        }  # fmt: skip
        if report is not None:
            about |= self.means.told(report, everybody)
            about["asked"] = sorted(names)  # whose report this is, and which of them told a loss
            about["losses"] = [n for n in about["asked"] if "loss" in self.roll.tells.get(n, ())]
        return about

    def _finish(self, about: dict[str, Any]) -> None:
        """The closing exchange is over: who has taken part in it has its whole model."""
        self._end = about if self._stop is None else _together(self._stop, about)
        store.replace_file(self.folder / "end.json", json.dumps(self._end).encode())

    def _is_near(self, about: dict[str, Any]) -> bool:
        """Whether the gap is small enough."""
        return self.study.tolerance is not None and about.get("bound", math.inf) <= self.study.tolerance

    def _stop_before(self, r: int, about: dict[str, Any]) -> None:
        """The study ends where the gap was measured, a round before: what everybody has just sent is of no use any more."""
        self._stop, self.rounds = about | {"round": r - 1}, r - 1
        store.replace_file(self.folder / "stop.json", json.dumps(self._stop).encode())

    # --- the whole run --------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Everything, from where it was."""
        try:
            return self._run()
        except OSError as error:
            if not store.is_full(error):
                raise
            raise Stopped(
                f"There is no room left in {self.folder} ({error.strerror}): make some; nothing is lost."
            ) from error

    def _run(self) -> Result:
        began = time.perf_counter()
        going_on = self._path.exists()
        if going_on:
            self.prepare()  # what was agreed is known, and where the study has ended there is nobody to wait for
        if self._end is None:
            self.roll.call(lambda waiting: self._show(len(self.log) if going_on else 0, waiting))
        if not going_on:
            self._draw_up()
            self.prepare()
        while self._end is None:
            r = len(self.log) + 1
            if self.stop_after is not None and r > self.stop_after:
                raise Stopped(f"stopped on purpose after round {self.stop_after}")
            self._show(r, [])
            self._round(r)
        w = self.account.w(self.log.lines, self._sends, self.shape)
        self.journal.note("the study is done")
        self._show(self.rounds + 2, [])
        return self.account.result(w, self.log.lines, self._end, time.perf_counter() - began, tuple(self.events))

    def part(self, seconds: float = 10.0) -> list[str]:
        """Say goodbye: a node stays until it hears this, since its last answer may have been lost. Gives who has not heard it.

        Call it once the result is where it belongs.
        """
        if not self.contract:
            self.prepare()
        assert self._end is not None
        path = self.folder / "parted.json"
        parted = set(json.loads(path.read_text())) if path.exists() else set[str]()
        closed = set(self._end["closed"])
        said = Goodbyes(self.asking, self.rounds, closed, parted, lambda base: self._question(self.rounds + 1, base)[1])
        said.say(seconds)
        store.replace_file(path, json.dumps(sorted(said.parted)).encode())
        return said.left


def _together(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The end of a study that was near enough: what was told when it was measured, and the bytes of both exchanges."""
    bytes_of = {way: {n: first[way][n] + second[way][n] for n in first[way]} for way in ("up", "down")}
    return first | bytes_of | {"closed": second["closed"]}


def _numbers(told: dict[str, Any]) -> int:
    """How many numbers a node has told."""
    return sum(len(value) if isinstance(value, list) else 1 for value in told.values())
