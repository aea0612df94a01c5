"""The coordinator: it draws the coins, takes means of messages, keeps a log of them, and sees nothing else.

It talks to nodes through a `Grid`, three methods that any network can have. Whatever has to survive is one file a round, on the
disk before anybody hears of it: whoever comes back, node or coordinator, goes on from there.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from twofold import randomness, storage, tree
from twofold.engines.schedule import footprint
from twofold.engines.sides import mean_of
from twofold.errors import TwofoldError
from twofold.federation import contract, gap, store, wire
from twofold.federation.account import Account
from twofold.federation.hello import heard
from twofold.federation.masks import COMMITMENT, SHARE, decode
from twofold.federation.store import Arrays
from twofold.federation.study import KEPT, Study, made
from twofold.federation.sums import Opening, nonsense, total
from twofold.federation.wire import VERSION, Note, Refused
from twofold.result import Result

__all__ = ["Coordinator", "Gone", "Grid", "Patience", "Question", "Stopped"]

MOST_BYTES = 1 << 26
"""Bytes of means that one question brings; who is further behind gets several."""
SLOW = 4e5
"""Bytes a second of a line that is slow, but not broken."""
log = logging.getLogger("twofold.coordinator")


class Question(NamedTuple):
    """Bytes for one node."""

    node: int
    content: bytes


class Gone(NamedTuple):
    """The network's word that a node is not there."""

    why: str


class Grid(Protocol):
    """All that a network has to offer."""

    def nodes(self) -> dict[int, str]:
        """Who is there: a number for each node, and a mark that changes when it comes back."""
        ...

    def push(self, questions: list[Question]) -> list[str]:
        """Ask; one ticket for each question."""
        ...

    def pull(self, tickets: list[str]) -> list[tuple[str, bytes | Gone]]:
        """The answers that are there by now, each with its ticket."""
        ...


class Stopped(TwofoldError):  # noqa: N818
    """A run that cannot go on for now: what there is can be resumed."""


@dataclass(frozen=True)
class Patience:
    """How long the coordinator waits, in seconds: between looks, before it asks again, and before it gives up."""

    poll: float = 0.005
    again: float = 20.0
    look: float = 0.5
    limit: float = 600.0


class _Line(NamedTuple):
    """One round in the log."""

    t: int
    here: list[int] | None  # None: everybody
    mean: Arrays
    sums: Arrays  # whole numbers, where messages stand in for later ones behind masks
    about: dict[str, Any]


class _Asked:
    """Who was asked what in one round, and who has answered."""

    def __init__(self, names: list[str], again: float, among: list[str] | None) -> None:
        self.tickets: dict[str, tuple[str, str]] = {}  # → who was asked, and the digest of the question
        self.when: dict[str, float] = {}
        self.patience = dict.fromkeys(names, again)  # doubled with each repeat: what is asked too often only queues up
        self.tries, self.put_off = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        self.lost: set[str] = set()
        self.answers: dict[str, Note] = {}
        self.names, self.looked = names, time.monotonic()
        self.among = names if among is None else among  # whose answers it takes

    @property
    def open(self) -> list[str]:
        return [n for n in self.names if n not in self.answers and n not in self.lost]

    @property
    def missing(self) -> list[str]:
        """Whose answers are not there, of those that it takes."""
        return [n for n in self.among if n not in self.answers]

    @property
    def counted(self) -> int:
        """How many of those that it takes have answered."""
        return len(self.among) - len(self.missing)


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
        watch: Callable[[dict[str, Any]], None] | None = None,
        stop_after: int | None = None,
    ) -> None:
        self.study, self.grid, self.folder = study, grid, Path(folder)
        self.patience, self.watch, self.stop_after = patience or Patience(), watch, stop_after
        self.where: dict[str, int] = {}
        self._seen: dict[int, str] = {}
        self._hellos: dict[
            str, tuple[int, str, float, str]
        ] = {}  # ticket → the node, its mark, when it was asked, and what
        self._again: set[tuple[int, str]] = set()  # nodes whose hello was refused once
        self._turned: dict[str, str] = {}  # clients that are there and refuse to take part, and why
        self.told: dict[str, dict[str, Any]] = {}
        self.tells: dict[str, list[str]] = {}
        self.commitments: dict[str, str] = {}
        self.seconds: list[float] = []
        self.log: list[_Line] = []
        self.events: list[str] = []
        self.rounds = study.rounds  # fewer once the gap is small enough
        self._stop: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None
        self.contract, self.nonce = "", contract.nonce()
        storage.made(self.folder)

    # --- words ----------------------------------------------------------------------------------------------------------

    def note(self, text: str, **more: Any) -> None:
        """Write an event down, for people and for programs."""
        text = wire.said_by(text, 2000)
        self.events.append(text)
        log.info(text, extra={"twofold": more})
        line = json.dumps({"time": round(time.time(), 3), "event": text, **more}) + "\n"
        with (self.folder / "events.jsonl").open("ab", buffering=0) as file:
            before = file.tell()
            if file.write(line.encode()) < len(line.encode()):  # a full disk took half of it
                file.truncate(before)

    def _tell(self, r: int, waiting: list[str]) -> None:
        """How far it is, for `twofold status` and the page."""
        self._shown = time.monotonic()
        status = {
            "study": self.study.name, "round": min(r, self.rounds), "rounds": self.study.rounds,
            "over": r > self.rounds + 1, "tolerance": self.study.tolerance, "waiting": waiting, "clients": list(self.study.names),
            "seconds": self.seconds[-200:], "time": time.time(), "masks": self.study.masks, "missing": self.study.missing,
            "events": self.events[-20:], **(self.account.so_far(self.log, self._end or self._stop) if hasattr(self, "account") else {}),
        }  # fmt: skip
        beside = self.folder / ".status.json"
        beside.write_text(json.dumps(status))
        beside.replace(self.folder / "status.json")
        if self.watch is not None:
            self.watch(status)

    # --- who is there ---------------------------------------------------------------------------------------------------

    def _content(self, kind: str, about: dict[str, Any], arrays: Arrays | None = None) -> bytes:
        """A question; no two are the same, so that no answer will do for another."""
        head = {"v": VERSION, "study": self.study.digest, "kind": kind, "token": secrets.token_hex(8)}
        return wire.sealed(Note({**head, **about}, arrays or {}))

    def _opened(self, name: str, content: bytes, kind: str, question: str) -> Note:
        """An answer from this client to that question, or a refusal with its name."""
        key = self.study.keys.get(name)
        answer = wire.opened(name, content, None if key is None else key.verify)
        about = answer.about
        if about.get("v") != VERSION:
            raise Refused(name, f"speaks version {about.get('v')!r} of the protocol, the coordinator {VERSION}")
        if about.get("study") != self.study.digest:
            raise Refused(name, "has another study file than the coordinator")
        if about.get("name") != name:
            raise Refused(name, f"answered as {about.get('name')!r}")
        if about.get("question") != question:
            raise Refused(name, "answered another question than the one that it was asked")
        for word in ("refused", "later"):
            if word in about and not isinstance(about[word], str):
                raise Refused(name, f"{word} must be a text, got {about[word]!r}")
        if "refused" in about:
            raise Refused(name, f"says: {about['refused']}")
        if about.get("kind") != kind and "later" not in about:
            raise Refused(name, f"answered {about.get('kind')!r}, asked was {kind!r}")
        return answer

    def greet(self) -> None:
        """Find out which node is which client, until all are there.

        Where a study goes on without those who are missing, and its contract is there, as many as a round takes will do.
        """
        began = time.monotonic()
        enough = self.study.quorum if self.study.missing == "skip" and self.contract else self.study.M
        while True:
            self._meet()
            gone = [n for n in self.study.names if n not in self.where]
            waited = time.monotonic() - began
            if not gone:
                return
            if self.study.M - len(gone) >= enough and waited > self.study.deadline:
                self.note(f"begins without {', '.join(gone)}", absent=gone)
                return
            if all(n in self._turned for n in gone) and self.study.M - len(gone) < enough:
                raise Stopped(f"Nobody is left to wait for: {'; '.join(self._turned[n] for n in gone)}.")
            if waited > self.patience.limit:
                raise Stopped(f"{', '.join(gone)} did not come within {self.patience.limit:g} s.")
            self._tell(len(self.log), gone)
            time.sleep(max(self.patience.poll, 0.05))

    def _meet(self, wait: float = 0.2) -> list[str]:
        """Say hello to every node that is new or back, and hear who has answered; who is slow is heard the next time."""
        nodes, now = self.grid.nodes(), time.monotonic()
        asked = {(node, mark) for node, mark, when, _ in self._hellos.values() if now - when < self.patience.again}
        fresh = [n for n, mark in nodes.items() if self._seen.get(n) != mark and (n, mark) not in asked]
        hello = self._content("hello", {"nonce": self.nonce} | ({"contract": self.contract} if self.contract else {}))
        for node, ticket in zip(
            fresh, self.grid.push([Question(n, hello) for n in fresh]) if fresh else [], strict=True
        ):
            self._hellos[ticket] = (node, nodes[node], now, wire.question_of(hello))
        found: list[str] = []
        while self._hellos:
            for ticket, content in self.grid.pull(list(self._hellos)):
                node, mark, _, question = self._hellos.pop(ticket)
                self._seen[node] = mark
                found += self._hello(node, mark, content, question)
            if time.monotonic() - now > wait:
                break
            time.sleep(self.patience.poll if self._hellos else 0)
        return found

    def _hello(self, node: int, mark: str, content: bytes | Gone, question: str) -> list[str]:
        try:
            if isinstance(content, Gone):
                raise Refused(f"node {node}", content.why)
            name = str(wire.opened(f"node {node}", content).about.get("name"))
            if name not in self.study.names:
                raise Refused(f"node {node}", f"says it is {name!r}, who is not in the study")
            hello = heard(name, self._opened(name, content, "hello", question).about, self.study)
        except Refused as error:
            self.note(f"node {node} does not join: {error}", node=node)
            if (node, mark) not in self._again:  # asked once more
                self._again.add((node, mark))
                del self._seen[node]
            elif error.who in self.study.names:
                self._turned[error.who] = str(error)
            return []
        self._turned.pop(name, None)
        self.commitments[name] = hello.commitment
        if self.where.get(name) not in (None, node):
            self.note(f"{name} is now node {node}, was {self.where[name]}", client=name)
        self.where[name], self.told[name], self.tells[name] = node, hello.told, hello.tells
        return [name]

    # --- before the first round -----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """The contract, the plan of the whole run, and the log so far."""
        path = self.folder / "contract.json"
        if path.exists():
            if json.loads(path.read_text())["study"] != self.study.digest:
                raise TwofoldError(f"{path} belongs to another study file: name another --out folder.")
        else:
            algorithm, note = self.study.complete(self.told)
            if note is not None:
                self.note(note)
            if not self.study.masks:
                self.note("no masks: the coordinator reads every client's messages, as docs/federation.md says")
            document = {  # the terms are sent, and the rest is nobody else's business
                **contract.terms(self.study, algorithm, self.nonce, self.commitments),
                "rows": [self.study.rows_of(self.told[n]) for n in self.study.names],
                "told": [_numbers(self.told[n]) for n in self.study.names],
                "epsilon": [self.told[n].get("epsilon", 0.0) for n in self.study.names],
            }  # fmt: skip
            store.replace_file(path, json.dumps(document, sort_keys=True).encode())
        document = json.loads(path.read_text())
        self.contract, self.nonce = contract.text_of(document), document["nonce"]
        self.algorithm, problem = tree.cast(made(document["algorithm"])), self.study.stand_in
        shapes = footprint(self.algorithm, problem)
        self.shape, self.weights = shapes.message, np.asarray(problem.clients.weights, np.float64)
        self.common = randomness.common(randomness.root(self.study.seed))
        self.account = Account(self.study, self.algorithm, shapes.parts, document)
        self.times, self.proof = self.account.times, self.study.proof
        self.said = [wire.fingerprint(self.contract)]
        for file in sorted((self.folder / "log").glob("*.safetensors")):
            arrays, about = store.read(file)
            mean, sums = (
                {n.split("/", 1)[1]: a for n, a in arrays.items() if n.startswith(f"{g}/")} for g in ("mean", "sum")
            )
            self._append(_Line(about["t"], about["here"], mean, sums, about))
        if (self.folder / "stop.json").exists():
            stop = json.loads((self.folder / "stop.json").read_text())
            self._stop, self.rounds = stop, stop["round"]
        if (self.folder / "end.json").exists():
            self._end = json.loads((self.folder / "end.json").read_text())
        elif self.log:
            self.note(f"resumed after round {len(self.log)}")

    def _append(self, line: _Line) -> None:
        self.log.append(line)
        self.said.append(wire.fingerprint(self.said[-1], len(self.log), line.t, line.here, line.mean))

    # --- one round ------------------------------------------------------------------------------------------------------

    def _sends(self, t: int) -> Any:
        return self.algorithm.sends(self.algorithm.plan(self.common, jnp.int32(t)))

    def _records(self, r: int) -> bool:
        """Whether losses after round r − 1 are asked for with round r."""
        return self.study.records(r, r > self.rounds)

    def _question(self, r: int, base: int) -> tuple[int, bytes]:
        """Round r, or an earlier one on the way to it, for a node that has answered round `base`."""
        first, size, until = max(base, 1), 0, r
        for i in range(first, r):
            size += sum(a.nbytes for a in self.log[i - 1].mean.values())
            if size > MOST_BYTES and i > first:
                until = i
                break
        lines = [{"round": i, "t": self.log[i - 1].t, "here": self.log[i - 1].here} for i in range(first, until)]
        arrays = {f"{i}/{n}": a for i in range(first, until) for n, a in self.log[i - 1].mean.items()}
        last = until > self.rounds
        about = {
            "contract": self.contract, "round": until, "last": last,
            "t": self.account.end_of(self.rounds) if last else int(self.times[until - 1]),
            "lines": lines, "said": self.said[until - 1], "record": self._records(until),
        }  # fmt: skip
        return until, self._content("round", about, arrays)

    def _round(self, r: int) -> None:
        began = time.perf_counter()
        due = {} if r > self.rounds else wire.due(self._sends(int(self.times[r - 1])), self.shape)
        due = {name: due[name] for name in sorted(due)}  # the order in which nodes put them behind their masks
        if self._records(r):
            due["report"] = np.zeros(2 + self.account.told_of_gap)
        base = dict.fromkeys(self.study.names, r - 1)
        asked_for: dict[str, int] = {}
        self._up, self._down = (dict.fromkeys(self.study.names, 0) for _ in range(2))

        questions: dict[int, tuple[int, bytes]] = {}  # who is equally far is asked the same: it is put together once

        def ask(names: list[str]) -> list[Question]:
            found = []
            for name in names:
                if base[name] not in questions:
                    questions[base[name]] = self._question(r, base[name])
                asked_for[name], content = questions[base[name]]
                self._down[name] += len(content)
                found.append(Question(self.where[name], content))
            return found

        def accept(name: str, answer: Note) -> bool:
            if answer.about.get("round") != asked_for[name]:
                raise Refused(name, f"answered round {answer.about.get('round')}, asked was {asked_for[name]}")
            if "behind" in answer.about or asked_for[name] < r:
                found = asked_for[name]
                if "behind" in answer.about:
                    found = wire.whole_in(name, answer.about, "behind", 0, r - 1)
                    self.note(
                        f"round {r}: {name} is at round {found} and gets the means since then", client=name, round=r
                    )
                base[name] = found
                return False
            self._check(name, due, answer.arrays)
            return True

        begun = self._begun(r)
        answers = self._collect(r, list(self.study.names), ask, accept, "round", among=begun and begun.names)
        here, sums = self._sum(r, due, answers, begun)
        self._close(r, due, answers, here, sums)
        self.seconds.append(time.perf_counter() - began)

    def _collect(
        self,
        r: int,
        names: list[str],
        ask: Callable[[list[str]], list[Question]],
        accept: Callable[[str, Note], bool],
        kind: str,
        enough: Callable[[dict[str, Note]], bool] = lambda answers: False,
        among: list[str] | None = None,
    ) -> dict[str, Note]:
        """Ask some clients, until all have answered, or as many (`among` some) as the study needs when its deadline is over."""
        asked, patience = _Asked(names, self.patience.again, among), self.patience

        def push(some: list[str]) -> None:
            asked.when |= dict.fromkeys(some, time.monotonic())
            some = [name for name in some if name in self.where]  # who has not come yet is asked when it does
            questions = ask(some)
            digests = {content: wire.question_of(content) for content in {q.content for q in questions}}
            for name, question, ticket in zip(some, questions, self.grid.push(questions), strict=True):
                asked.tickets[ticket] = name, digests[question.content]
                # A long message takes its time, and so does its answer: to ask again would only double the load.
                asked.patience[name] = max(asked.patience[name], len(question.content) / SLOW)

        push(names)
        began = time.monotonic()
        quorum = self.study.quorum if self.study.missing == "skip" else len(names)

        while asked.open and not enough(asked.answers):
            arrived = self.grid.pull(list(asked.tickets))
            for ticket, content in arrived:
                name, question = asked.tickets.pop(ticket, ("", ""))
                if name in asked.open:  # else a second or late answer: of no use, and no harm
                    self._take(r, name, content, asked, accept, push, (kind, question))
            if arrived:  # somebody may be on the way back: time is only up when nothing comes any more
                continue
            now = time.monotonic()
            self._welcome(r, asked, push, now)
            self._remind(r, asked, push, now)
            if asked.counted >= quorum and now - began > self.study.deadline:
                self.note(f"round {r}: goes on without {', '.join(asked.open)}", round=r, absent=asked.open)
                break
            if now - began > patience.limit:
                raise Stopped(f"round {r}: {', '.join(asked.open)} did not answer within {patience.limit:g} s.")
            time.sleep(patience.poll)
        if asked.counted < quorum:
            raise Stopped(
                f"round {r}: {', '.join(asked.missing)} cannot be reckoned with: it takes {quorum} of {', '.join(asked.among)}."
            )
        return {n: asked.answers[n] for n in names if n in asked.answers}

    def _remind(self, r: int, asked: _Asked, push: Callable[[list[str]], None], now: float) -> None:
        """Ask those again who have not answered for long."""
        late = [n for n in asked.open if n in self.where and now - asked.when[n] > asked.patience[n]]
        if late:
            self.note(f"round {r}: no answer from {', '.join(late)} yet; asked again", round=r, late=late)
            asked.patience |= {n: 2 * asked.patience[n] for n in late}
            push(late)

    def _take(
        self, r: int, name: str, content: bytes | Gone, asked: _Asked, accept: Callable[[str, Note], bool],
        push: Callable[[list[str]], None], question: tuple[str, str],
    ) -> None:  # fmt: skip
        """One answer: taken, asked for once more, or given up."""
        if isinstance(content, Gone):  # not the client's answer, but the network's word that it is not there
            self.note(f"round {r}: {name} is not there ({content.why[:80]})", client=name, round=r)
            asked.when[name] = time.monotonic()
            return
        self._up[name] += len(content)
        try:
            answer = self._opened(name, content, *question)
            if (
                "later" in answer.about
            ):  # a full disk, say: asked again with growing patience, like one who is not there
                self.note(f"round {r}: {name} cannot answer now: {answer.about['later']}", client=name, round=r)
                asked.put_off[name] += 1
                asked.when[name] = time.monotonic()
                asked.patience[name] = min(self.patience.again, 2.0 ** asked.put_off[name])
            elif accept(name, answer):
                asked.answers[name] = answer
            else:
                push([name])
        except (Refused, ArithmeticError, LookupError, TypeError, ValueError) as error:
            refused = (
                error if isinstance(error, Refused) else Refused(name, f"sent a document that does not fit ({error})")
            )
            asked.tries[name] += 1
            self.note(f"round {r}: refused: {refused}", client=name, round=r)
            if asked.tries[name] < 2:
                push([name])
            elif self.study.missing == "skip":
                asked.lost.add(name)
            else:
                raise Stopped(f"round {r}: {refused}") from error

    def _welcome(self, r: int, asked: _Asked, push: Callable[[list[str]], None], now: float) -> None:
        """Look from time to time who has come back, as another node or as the same one, and ask them again."""
        if now - asked.looked <= self.patience.look:
            return
        asked.looked = now
        self._tell(r, asked.open)
        if self._hellos or any(self._seen.get(n) != mark for n, mark in self.grid.nodes().items()):
            back = [n for n in self._meet() if n in asked.open]
            if back:
                self.note(f"round {r}: {', '.join(back)} came back", round=r, back=back)
                push(back)

    def _check(self, name: str, due: dict[str, Any], arrays: Arrays) -> None:
        """Exactly what is due, in the form in which it is due."""
        if not self.study.masks:
            wire.check(name, due, arrays, self.study.most)
        elif due:
            wanted: dict[str, Any] = {
                "masked": np.zeros(sum(int(np.prod(leaf.shape)) for leaf in due.values()), np.uint64)
            }
            if self.study.missing == "skip":
                me, seeds = self.study.names.index(name), self.study.M + 1
                wanted |= {f"share.{j}": np.zeros(SHARE * seeds + 16, np.uint8) for j in range(self.study.M) if j != me}
                wanted["commitments"] = np.zeros((seeds, self.study.M, COMMITMENT), np.uint8)
            wire.check(name, wanted, arrays)
        elif arrays:
            raise Refused(name, f"sent the parts {sorted(arrays)}, due is nothing")

    # --- the mean -------------------------------------------------------------------------------------------------------

    @property
    def _beginning(self) -> Path:
        return self.folder / "opening.safetensors"

    def _begun(self, r: int) -> Opening | None:
        """The sum of this round that was being opened when the coordinator ended: nodes help to open no other one."""
        if not self._beginning.exists():
            return None
        arrays, about = store.read(self._beginning)
        if about["round"] != r:
            return None
        handed: dict[int, Arrays] = {m: {} for m in about["here"]}
        for name, array in arrays.items():
            m, what = name.split("/", 1)
            handed[int(m)][what] = array
        found = Opening(self.study, handed)
        self.note(f"round {r}: the sum of {', '.join(found.names)} is opened, as was begun", round=r)
        return found

    def _sum(
        self, r: int, due: dict[str, Any], answers: dict[str, Note], begun: Opening | None
    ) -> tuple[list[int], Arrays | None]:
        """Who is in the sum, and where there are masks the sum behind them, part by part, in whole numbers."""
        places = {name: self.study.names.index(name) for name in answers}
        here = sorted(places.values())
        if not (self.study.masks and due):
            return here, None
        if self.study.missing == "wait":
            return here, total([answer.arrays["masked"] for answer in answers.values()], due)
        opening = begun or Opening(self.study, {m: answers[self.study.names[m]].arrays for m in here})
        helpers = [name for name in answers if places[name] in opening.here]
        while True:
            # Which sum it is has to be remembered, and what is in it: with that, any quorum of its clients will do.
            arrays = {f"{m}/{n}": a for m, sent in opening.handed.items() for n, a in sent.items()}
            store.write(self._beginning, arrays, {"round": r, "here": opening.here})
            opened, closed = self._open(r, opening, helpers)
            if len(opened) >= self.study.quorum:
                break
            opening = opening.without(
                [m for m, whose in closed.items() if len(opening.here) - len(whose) < self.study.quorum]
            )
            # Who has helped to open the first sum helps with no other one.
            helpers = [n for n in helpers if n not in opened and places[n] in opening.here]
            if len(helpers) < self.study.quorum:
                raise Stopped(
                    f"round {r}: the shares of {', '.join(self.study.names[m] for m in closed)} could not be opened, and "
                    f"{self.study.quorum} clients are not left to open another sum: agree on a study without who sent them."
                )
        try:
            masks = opening.masks({places[n]: a for n, a in opened.items()}, opening.masked[0].size)
        except Refused as refused:
            self.note(f"round {r}: refused: {refused}", client=refused.who, round=r)
            raise Stopped(
                f"round {r}: {refused}, and no other sum of this round can be opened: agree on a study without {refused.who}."
            ) from refused
        return opening.here, total([*opening.masked, *masks], due)

    def _open(self, r: int, opening: Opening, helpers: list[str]) -> tuple[dict[str, Note], dict[int, list[str]]]:
        """Who has opened its shares of the sum; and for each client whose shares were not what it committed to, who says so."""

        def ask(some: list[str]) -> list[Question]:
            found = []
            for name in some:
                about = {"contract": self.contract, "round": r, "here": opening.here, "said": self.said[r - 1]}
                content = self._content("open", about, opening.shares_for(self.study.names.index(name)))
                self._down[name] += len(content)
                found.append(Question(self.where[name], content))
            return found

        def accept(name: str, answer: Note) -> bool:
            opening.check(name, answer)
            return True

        def opened(answers: dict[str, Note]) -> dict[str, Note]:
            return {name: answer for name, answer in answers.items() if "unopened" not in answer.about}

        found = self._collect(
            r, helpers, ask, accept, "open", enough=lambda answers: len(opened(answers)) >= self.study.quorum
        )
        closed: dict[int, list[str]] = {}
        for name, answer in found.items():
            for m in answer.about.get("unopened", ()):
                closed.setdefault(m, []).append(name)
        for m, whose in closed.items():
            who = self.study.names[m]
            self.note(
                f"round {r}: refused: {who}: handed out shares that {', '.join(whose)} cannot open", client=who, round=r
            )
        return opened(found), closed

    def _close(
        self, r: int, due: dict[str, Any], answers: dict[str, Note], here: list[int], sums: Arrays | None
    ) -> None:
        """Take the means, write them down, and only then go on."""
        everybody, names = len(here) == self.study.M, [self.study.names[m] for m in here]
        share = 1.0 if everybody else float(self.weights[here].sum())
        keeps = self.study.missing == "skip" and self.algorithm.name in KEPT
        mean, whole = {}, {}
        for name, leaf in due.items():
            if sums is None:
                weights = jnp.asarray(self.weights[here] if keeps or everybody else self.weights[here] / share)
                sent = [answers[self.study.names[m]].arrays[name] for m in here]
                mean[name] = np.asarray(mean_of(weights.astype(sent[0].dtype), sent))
                if keeps and name != "report":
                    mean[name] = np.asarray(mean[name] + self._before(name, np.zeros_like(mean[name])))
            else:
                if keeps and name != "report":
                    whole[name] = np.asarray(sums[name] + self._before(name, np.zeros_like(sums[name]), "sums"))
                self._look_at(r, {name: whole.get(name, sums[name])}, 1.0 if keeps else share)
                found = decode(whole.get(name, sums[name]), self.study.bits) / (1.0 if keeps else share)
                mean[name] = np.asarray(found, leaf.dtype).reshape(leaf.shape)
        report = mean.pop("report", None)
        about: dict[str, Any] = {
            "v": VERSION, "round": r, "here": None if everybody else here, "up": self._up, "down": self._down,
            "time": time.time(),
        }  # fmt: skip
        if report is not None:
            about |= self._reported(report, everybody)
            about["asked"] = sorted(names)  # whose report this is, and which of them told a loss
            about["losses"] = [n for n in about["asked"] if "loss" in self.tells.get(n, ())]
        if r > self.rounds:
            about["closed"] = sorted({*names, *answers})
            self._end = about if self._stop is None else _together(self._stop, about)
            store.replace_file(self.folder / "end.json", json.dumps(self._end).encode())
            return
        if r > 1 and self._is_near(about):
            # What everybody has just sent is of no use any more: the study ends where the gap was measured, a round before.
            self._stop, self.rounds = about | {"round": r - 1}, r - 1
            store.replace_file(self.folder / "stop.json", json.dumps(self._stop).encode())
            return
        about["t"] = int(self.times[r - 1])
        arrays = {f"mean/{n}": a for n, a in mean.items()} | {f"sum/{n}": a for n, a in whole.items()}
        store.write(self.folder / "log" / f"{r:06d}.safetensors", arrays, about)
        self._beginning.unlink(missing_ok=True)
        self._append(_Line(about["t"], about["here"], mean, whole, about))

    def _look_at(self, r: int, sums: Arrays, share: float) -> None:
        """A sum of what are no messages must not become everybody's model."""
        most = math.inf if self.study.most is None else self.study.most * share
        why = nonsense(sums, self.study.bits, most, self.study.step)
        if why is None:
            return
        sentence = f"round {r}: the sum is nonsense: {why}; somebody sent what is no message, and behind masks nobody can be named"
        self.note(sentence, round=r)
        raise Stopped(
            f"{sentence}: find out who with the same clients, made-up rows and [masks] on = false, and agree on a study without it."
        )

    def _reported(self, report: np.ndarray, everybody: bool) -> dict[str, float]:
        """The loss of those who told it, and the gap where everybody is there."""
        found = {"loss": float(report[0] / report[1])} if report[1] > 0 else {}
        if self.proof is not None and everybody:
            found["bound"] = gap.bound_of(self.proof, report[2:], self.study.step)
        return found

    def _is_near(self, about: dict[str, Any]) -> bool:
        """Whether the gap is small enough."""
        return self.study.tolerance is not None and about.get("bound", math.inf) <= self.study.tolerance

    def _before(self, name: str, nothing: np.ndarray, what: str = "mean") -> np.ndarray:
        """The last mean of a part."""
        return next((getattr(line, what)[name] for line in reversed(self.log) if name in line.mean), nothing)

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
        going_on = (self.folder / "contract.json").exists()
        if going_on:
            self.prepare()  # what was agreed is known, and where the study has ended there is nobody to wait for
        if self._end is None:
            self.greet()
        if not going_on:
            self.prepare()
        while self._end is None:
            r = len(self.log) + 1
            if self.stop_after is not None and r > self.stop_after:
                raise Stopped(f"stopped on purpose after round {self.stop_after}")
            self._tell(r, [])
            self._round(r)
        w = self.account.w(self.log, self._sends, self.shape)
        self.note("the study is done")
        self._tell(self.rounds + 2, [])
        return self.account.result(w, self.log, self._end, time.perf_counter() - began, tuple(self.events))

    def part(self, seconds: float = 10.0) -> list[str]:
        """Say goodbye: a node stays until it hears this, since its last answer may have been lost. Gives who has not heard it.

        Call it once the result is where it belongs.
        """
        if not self.contract:
            self.prepare()
        assert self._end is not None
        path, until, goodbyes = self.folder / "parted.json", time.monotonic() + seconds, _Goodbyes(self, self._end)
        if path.exists():
            goodbyes.parted |= set(json.loads(path.read_text()))
        while goodbyes.left and time.monotonic() < until:
            goodbyes.ask()
            goodbyes.hear()
            time.sleep(max(self.patience.poll, 0.01))
        store.replace_file(path, json.dumps(sorted(goodbyes.parted)).encode())
        return goodbyes.left


class _Goodbyes:
    """Who has heard goodbye; who was missing in the last exchange has that first."""

    def __init__(self, server: Coordinator, end: dict[str, Any]) -> None:
        self.server, self.closed = server, set(end["closed"])
        self.parted: set[str] = set()
        self.base = dict.fromkeys(server.study.names, server.rounds)
        self.tickets: dict[str, tuple[str, str]] = {}
        self.asked: dict[str, float] = {}

    @property
    def left(self) -> list[str]:
        return [name for name in self.server.study.names if name not in self.parted]

    def ask(self) -> None:
        server = self.server
        for name in server._meet(0.05):
            self.asked.pop(name, None)
        now = time.monotonic()
        due = [n for n in self.left if n in server.where and now - self.asked.get(n, -math.inf) > server.patience.again]
        self.asked |= dict.fromkeys(due, now)
        if due:
            questions = [self._question(n) for n in due]
            asked = [(n, wire.question_of(q.content)) for n, q in zip(due, questions, strict=True)]
            self.tickets |= dict(zip(server.grid.push(questions), asked, strict=True))

    def _question(self, name: str) -> Question:
        if name in self.closed:
            return Question(self.server.where[name], self.server._content("bye", {}))
        return Question(self.server.where[name], self.server._question(self.server.rounds + 1, self.base[name])[1])

    def hear(self) -> None:
        for ticket, content in self.server.grid.pull(list(self.tickets)):
            name, question = self.tickets.pop(ticket)
            try:
                if not isinstance(content, Gone):
                    self._take(name, content, question)
            except Refused as error:
                self.server.note(f"after the last round: refused: {error}", client=name)

    def _take(self, name: str, content: bytes, question: str) -> None:
        about = self.server._opened(name, content, "bye" if name in self.closed else "round", question).about
        if "later" in about:
            return
        if name in self.closed:
            self.parted.add(name)
            return
        reached = wire.whole_in(name, about, "behind" if "behind" in about else "round", 0, self.server.rounds + 1)
        self.base[name] = min(reached, self.server.rounds)
        if "behind" not in about and reached > self.server.rounds:
            self.closed.add(name)
        self.asked.pop(name)


def _together(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The end of a study that was near enough: what was told when it was measured, and the bytes of both exchanges."""
    bytes_of = {way: {n: first[way][n] + second[way][n] for n in first[way]} for way in ("up", "down")}
    return first | bytes_of | {"closed": second["closed"]}


def _numbers(told: dict[str, Any]) -> int:
    """How many numbers a node has told."""
    return sum(len(value) if isinstance(value, list) else 1 for value in told.values())
