"""One node of a federation: a client with its rows, its private state on its own disk, and answers to questions.

A question of round r brings the means that this node has not had and says when the next message is due. The node finishes the
iteration of its last message, replays the silent ones by itself, begins the next, writes its state down, and only then answers.
Asked the same again, it gives the same answer. It knows nothing of the network.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twofold import randomness, tree
from twofold.engines.schedule import footprint
from twofold.engines.sides import ClientSide
from twofold.errors import InputError, TwofoldError
from twofold.federation import contract, gap, memory, store, wire
from twofold.federation.account import Timetable, started
from twofold.federation.contract import SERVER, Asked, Contract
from twofold.federation.dp import Noise
from twofold.federation.keys import Identity
from twofold.federation.masks import Masks, encode
from twofold.federation.memory import CONTRACT, State
from twofold.federation.seat import Seat
from twofold.federation.store import Arrays
from twofold.federation.study import KEPT
from twofold.federation.tells import check_tells, usual_tells
from twofold.federation.wire import VERSION, Note, Refused
from twofold.tree import Pytree

__all__ = ["Node"]

log = logging.getLogger("twofold.node")


def _why(error: Exception) -> str:
    """An error of the operating system's, without the name of a file in it."""
    return f"its disk says: {getattr(error, 'strerror', None) or type(error).__name__}"


class Node:
    """What one hospital runs. `tells` is what it is willing to say besides messages, with so many `digits`.

    Constants and the number of rows if nothing is said, and its part of the gap where the study ends at one; "loss" is asked for.
    """

    def __init__(
        self,
        seat: Seat,
        folder: str | Path,
        *,
        tells: tuple[str, ...] | None = None,
        digits: int | None = None,
        identity: Identity | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.seat, self.study, self.name, self.folder = seat, seat.study, seat.name, Path(folder)
        tells = usual_tells(self.study) if tells is None else tells
        check_tells(self.study, tells, noise)
        self.tells, self.digits, self.noise = tells, digits, noise
        self.identity = self._known(identity)
        self.weight = float(seat.problem.clients.weights[seat.position])
        self.proof = None if self.study.proof is None else gap.proof(seat.problem)
        self.masks: Masks | None = None
        if self.study.masks and self.identity is not None:
            everyone = [self.study.keys[name] for name in self.study.names]
            self.masks = Masks(seat.position, self.identity, everyone, self.study.digest, self.study.quorum)
        self._contract: str | None = None
        self._promised: str | None = None  # the contract that has this node's own commitment
        self._state: State | None = None

    def _known(self, identity: Identity | None) -> Identity | None:
        """The identity, if it is the one that the study file lists."""
        listed = self.study.keys.get(self.name)
        if listed is None:
            return None
        if identity is None:
            raise InputError(f"The study lists a key for {self.name!r}: join with --key.")
        if identity.public.line != listed.line:
            raise InputError(f"This key is not the one that the study lists for {self.name!r}.")
        return identity

    # --- questions ------------------------------------------------------------------------------------------------------

    def handle(self, content: bytes) -> bytes:
        """The answer to a question, both as bytes; what is wrong with a question is said in the answer."""
        try:
            answer = self.answer(wire.opened(SERVER, content))
        except (TwofoldError, OSError) as error:
            log.warning("not answered: %s", error)
            why = {"later": _why(error)} if store.is_full(error) else {"refused": self._outwards(error)}
            answer = Note({"v": VERSION, "study": self.study.digest, "name": self.name, **why}, {})
        # Signed with it: this answer is of no use for another question, in another round or another run.
        answer = Note(answer.about | {"question": wire.question_of(content)}, answer.arrays)
        return wire.sealed(answer, None if self.identity is None else self.identity.sign)

    def _outwards(self, error: Exception) -> str:
        """An error in words that say nothing of where this node keeps its files."""
        return (_why(error) if isinstance(error, OSError) else str(error)).replace(str(self.folder), "its state folder")

    def answer(self, question: Note) -> Note:
        """The same without bytes; raises what is wrong."""
        about, arrays = question
        if about.get("v") != VERSION:
            raise Refused(SERVER, f"speaks version {repr(about.get('v'))[:60]} of the protocol, this node {VERSION}")
        if about.get("study") != self.study.digest:
            raise Refused(SERVER, "has another study file than this node")
        kinds = {"hello": self._hello, "round": self._round, "open": self._open, "bye": self._bye}
        kind = about.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            raise Refused(SERVER, f"asks {repr(kind)[:60]}, which this node does not know")
        head, sent = kinds[kind](about, arrays)
        return Note({"v": VERSION, "study": self.study.digest, "name": self.name, **head}, sent)

    def _hello(self, about: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        contract.entries(about, contract.HELLO)
        if "contract" in about:  # where the run has begun already
            contract.entries(about, {"contract": contract.TEXT})
            self._agree(about["contract"])
        told = self.seat.told(self.tells, self.digits)
        if self.noise is not None:
            told["epsilon"], told["delta"] = self.noise.spent(self.study.rounds), self.noise.delta
        return {
            "kind": "hello",
            "x64": bool(jax.config.read("jax_enable_x64")),
            "tells": list(self.tells),
            "told": told,
            "commitment": self._commitment(about["nonce"]),
        }, {}

    def _commitment(self, nonce: str) -> str:
        """What stands in the contract of a run for this node's rows, for what it tells and for its noise; a digest under its key.

        The masks follow from the contract. So with other rows, or another readiness to tell, every mask is another.
        """
        return "" if self.identity is None else self.identity.secret(f"commitment {nonce}", self._own.encode()).hex()

    def _round(self, about: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        contract.entries(about, contract.ROUND)
        self._agree(about["contract"])
        asked, state = contract.asked(self.study, self._timetable, about), self._load()
        r = asked.round
        if r < state.round:
            raise Refused(SERVER, f"asks round {r}, this node has answered round {state.round}")
        if r > state.round:
            if any(i not in asked.lines for i in range(max(state.round, 1), r)):
                return {"kind": "round", "round": r, "behind": state.round}, {}
            state = self._forward(state, asked, arrays)
            self._keep(state)
        elif asked.said != state.said:
            raise Refused(SERVER, f"asks round {r} a second time with other numbers")
        elif asked.last and not state.last:
            state = self._ended(state, asked)
            self._keep(state)
        return {"kind": "round", "round": r, "t": state.t}, state.sent

    def _bye(self, about: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """The coordinator has this node's last answer, and its result is where it belongs."""
        self._recall()
        if self._state is None or not self._state.last:
            raise Refused(SERVER, "says goodbye before the end of the study")
        if not self._state.parted:
            self._keep(replace(self._state, parted=True))
        return {"kind": "bye"}, {}

    def _ended(self, state: State, asked: Asked) -> State:
        """The state where the gap was found small enough; the message that was made after it is of no use any more."""
        if state.ended is None:
            raise Refused(SERVER, f"ends the study before round {state.round}, where no gap was measured")
        shared, private = state.ended
        return State(round=state.round, t=asked.t, said=state.said, shared=shared, private=private, last=True)

    def _forward(self, state: State, asked: Asked, arrays: Arrays) -> State:
        """The state from which round r is answered, through every round that this node has missed."""
        r, said, kept, raw, t = asked.round, state.said, dict(state.kept), state.raw, state.t
        side, turn = self.client, None
        side.shared, side.private = state.shared, state.private
        for i in range(state.round + 1, r + 1):
            mean, k = self.nothing, t
            if i > 1:
                here = asked.lines[i - 1].here
                found = {n.split("/", 1)[1]: a for n, a in arrays.items() if n.startswith(f"{i - 1}/")}
                sends = self._sends(t)
                wire.check(SERVER, wire.due(sends, self.shape), found)
                said = wire.fingerprint(said, i - 1, t, here, found)
                mean = wire.whole(sends, self.shape, found)
                if here is None or self.seat.position in here:
                    kept |= raw
            t = asked.t if i == r else asked.lines[i].t
            turn = side.turn(k, mean, t)
            ends = asked.last and i == r
            side.shared, side.private = turn.settled if ends else (turn.settled[0], turn.begun)
            raw = {} if ends else self._message(t, turn.message, said)
        if said != asked.said:
            raise Refused(SERVER, "tells another history than before")
        assert turn is not None
        report = self._report(turn.finished) if asked.record else {}
        # What is asked is in the masks, too: another question in the same place has other masks, and the two say nothing together.
        question = wire.fingerprint(said, r, t, asked.last, asked.record)
        sent = self._sealed(raw, kept, report, question)
        raw, kept = (raw, kept) if self._keeps else ({}, {})  # nobody asks for them again
        ended = turn.finished if asked.record and self.study.tolerance is not None else None
        return State(
            round=r, t=t, said=said, shared=side.shared, private=side.private, sent=sent, raw=raw, kept=kept, last=asked.last,
            asked=question, ended=ended,
        )  # fmt: skip

    # --- messages -------------------------------------------------------------------------------------------------------

    def _sends(self, t: int) -> Any:
        return self.algorithm.sends(self.algorithm.plan(self.common, jnp.int32(t)))

    def _message(self, t: int, message: Any, said: str) -> Arrays:
        """The parts of a message that are due, with noise where this node wants it."""
        found = wire.parts(self._sends(t), message)
        for name, array in found.items():
            if not np.isfinite(array).all():
                raise InputError(
                    f"client {self.name!r}: {name} of its message is not finite in iteration {t}: smaller steps?"
                )
        if self.noise is not None:
            found = self.noise.applied(found, wire.fingerprint(said, t, self._own))
        most = self.study.most
        for name, array in found.items():
            if most is not None and float(np.linalg.norm(array)) > most:  # behind masks nobody else can look
                log.warning("%s has the norm %.6g", name, float(np.linalg.norm(array)))
                raise InputError(
                    f"client {self.name!r}: {name} of its message in iteration {t} is longer than [round] norm = {most:g}: scale "
                    "the features, take smaller steps, or agree on a larger norm."
                )
        return found

    def _report(self, finished: tuple[Pytree, Pytree]) -> Arrays:
        """The loss and how much it counts: nothing where this node does not tell it; and its part of the gap."""
        tells = "loss" in self.tells
        found = np.array([self.client.value(*finished) if tells else 0.0, float(tells)])
        if self.proof is None:
            return {"report": found}
        factors, allowance = gap.of_client(self.proof, self.seat.position), float(self.proof.shared.allowance)
        part = gap.part_of(factors, allowance, self.weight, *self.client.gradients(*finished))
        return {"report": np.concatenate([found, part])}

    @property
    def _keeps(self) -> bool:
        """Whether only the change since the last message that counted is sent."""
        return self.study.missing == "skip" and self.algorithm.name in KEPT

    def _sealed(self, raw: Arrays, kept: Arrays, report: Arrays, asked: str) -> Arrays:
        """What leaves this node."""
        before = {name: kept.get(name, np.zeros_like(a)) for name, a in raw.items()} if self._keeps else {}
        if self.masks is None:
            return {n: a - before[n] if before else a for n, a in raw.items()} | report
        both = {**{n: raw[n] for n in sorted(raw)}, **report}
        if not both:
            return {}

        def fixed(arrays: Arrays) -> np.ndarray:
            flat = np.concatenate([np.ravel(a) for a in arrays.values()], dtype=np.float64)
            return encode(flat, self.weight, self.study.bits, self.study.M, f"client {self.name!r}")

        vector = fixed(both)
        if before:
            vector = vector - fixed(
                {**{n: before[n] for n in sorted(raw)}, **{n: np.zeros_like(a) for n, a in report.items()}}
            )
        vector = vector + self.masks.between(vector.size, asked)
        if self.study.missing == "wait":
            return {"masked": vector}
        return {"masked": vector + self.masks.own(vector.size, asked)} | self.masks.handed_out(asked)

    def _open(self, about: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """Help to open one sum of a round: shares of the seeds of those who are in it, and between them and the others."""
        contract.entries(about, contract.OPEN)
        self._agree(about["contract"])
        state, here = self._load(), about["here"]
        if self.masks is None or self.study.missing == "wait":
            raise Refused(SERVER, "asks to open a sum, which this study has no use for")
        if about["round"] != state.round or about["said"] != state.said:
            raise Refused(SERVER, f"asks to open round {about['round']}, this node is in round {state.round}")
        contract.check_here(self.study, here)
        if self.seat.position not in here:
            raise Refused(SERVER, f"asks this node to open a sum of {here}, in which it is not")
        if state.opened is not None and state.opened != here:
            raise Refused(SERVER, f"asks to open a second sum of round {state.round}")
        found = {j: self._shares_of(j, arrays, state.asked) for j in here}
        if unopened := [j for j, shares in found.items() if shares is None]:  # nothing is opened then
            log.warning("shares that do not open, of %s", ", ".join(self.study.names[j] for j in unopened))
            return {"kind": "open", "round": state.round, "unopened": unopened}, {}
        gone = [k for k in range(self.study.M) if k not in here]
        own = [shares[0] for shares in found.values() if shares]
        pair = [shares[1 + k] for shares in found.values() if shares for k in gone]
        if state.opened is None:
            self._keep(replace(state, opened=here))
        sent = {"own": np.frombuffer(b"".join(own), np.uint8), "pair": np.frombuffer(b"".join(pair), np.uint8)}
        return {"kind": "open", "round": state.round}, sent

    def _shares_of(self, j: int, arrays: Arrays, asked: str) -> list[bytes] | None:
        """This node's shares of the seeds of node j; None where j has handed it something else."""
        assert self.masks is not None
        if j == self.seat.position:
            return [each[j] for each in self.masks.shares(asked)]
        if any(f"{what}.{j}" not in arrays for what in ("share", "commitments")):
            raise Refused(SERVER, f"asks to open a sum without the shares of {self.study.names[j]}")
        box, committed = arrays[f"share.{j}"].tobytes(), arrays[f"commitments.{j}"].tobytes()
        return self.masks.opened_shares(j, box, committed, asked)

    # --- what is agreed on, and what is kept ----------------------------------------------------------------------------

    def _agree(self, text: str) -> None:
        """Take the contract of this run, once and for all, if it is of this study and made with what this node has."""
        if text == self._promised:
            return
        path = self.folder / CONTRACT
        if self._contract not in (None, text) or (path.exists() and path.read_text() != text):
            raise Refused(
                SERVER,
                f"changed the contract of this study; the one that this node knows is {path}: for a new run of it, name another "
                "--state folder",
            )
        found = Contract(self.study, text)
        if found.commitments[self.seat.position] != self._commitment(found.nonce):
            raise InputError(
                f"client {self.name!r}: this run began with other rows, or with another --tell, --digits, --clip, --noise or --delta: "
                "join as at its beginning, or let the coordinator begin another run in a new --out folder."
            )
        if self._contract is None:
            self._use(found, text)
        if not path.exists():
            store.closed(self.folder)
            store.replace_file(path, text.encode())
        self._contract = self._promised = text

    def _use(self, found: Contract, text: str) -> None:
        """Make everything that follows from a contract."""
        problem, m = self.seat.problem, self.seat.position
        self.algorithm = tree.cast(found.algorithm)
        shapes = footprint(self.algorithm, problem)
        self.shape, self._parts = shapes.message, shapes.parts
        self.nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.shape)
        self.common = randomness.common(randomness.root(self.study.seed))
        w, beta = started(problem)
        salt = b""
        if self.study.salted and self.identity is not None:
            salt = self.identity.secret("salt", self.study.digest.encode(), 16)
        own = jax.tree.map(lambda leaf: leaf[m], beta)
        self.client = ClientSide(self.algorithm, problem, m, self.study.seed, w, own, salt)
        self._first = State(said=wire.fingerprint(text), shared=self.client.shared, private=self.client.private)

    @cached_property
    def _own(self) -> str:
        """A digest of all that a message follows from, besides the study, the contract and the history."""
        noise = None if self.noise is None else [self.noise.clip, self.noise.multiplier, self.noise.delta]
        seat = self.seat
        return wire.fingerprint(self.study.digest, self.name, seat.x, seat.y, sorted(self.tells), self.digits, noise)

    @cached_property
    def _timetable(self) -> Timetable:
        """When rounds come, by the common coins."""
        return Timetable(self.study, self.algorithm, self._parts, np.ones(self.study.M, np.int64))

    def _load(self) -> State:
        """The state in memory, or from the disk, or the first one."""
        if self._state is None:
            self._state = memory.read(self.folder, self._first)
        return self._state

    def _keep(self, new: State) -> None:
        """On the disk first, then in memory: a full disk changes nothing."""
        memory.write(self.folder, new, self._first)
        self._state = new

    @property
    def is_done(self) -> bool:
        """Whether this node has answered the last question of the study: its model is whole."""
        return self._remembers("last")

    @property
    def answered(self) -> int:
        """The last round that this node has answered since it was started."""
        return 0 if self._state is None else self._state.round

    @property
    def has_parted(self) -> bool:
        """Whether the coordinator has said goodbye: nobody will ask again."""
        return self._remembers("parted")

    def _remembers(self, what: str) -> bool:
        """One word of the state, also where it is only on the disk."""
        if self._state is not None:
            return bool(getattr(self._state, what))
        return memory.word(self.folder, self.study.digest, what)

    def _recall(self) -> None:
        """The state on the disk, if there is one."""
        path = self.folder / CONTRACT
        if self._contract is None and path.exists():
            text = path.read_text()
            self._use(Contract(self.study, text), text)
            self._contract = text
        if self._contract is not None:
            self._load()

    # --- the model ------------------------------------------------------------------------------------------------------

    def model(self) -> tuple[Pytree, Pytree]:
        """The real (unscaled) w and this client's own β, from the state on the disk."""
        path = self.folder / CONTRACT
        if self._contract is None:
            if not path.exists():
                raise InputError(f"{self.folder} holds no state yet: has the node joined?")
            self._recall()
        state, problem = self._load(), self.seat.problem
        w = self.algorithm.model(state.shared)
        mine = self.algorithm.personal(state.private)
        everyone = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.study.M, *leaf.shape)), mine)
        w, split = problem.outward(w, problem.split(everyone))
        beta = jax.tree.map(lambda leaf: np.asarray(leaf[self.seat.position]), problem.join(split))
        return jax.tree.map(np.asarray, w), beta
