"""The changes that an administrator makes: each change has a page that asks, and a POST that makes the change.

Before a POST arrives here, the guard has checked the login, the token of the form, and the site.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spool.errors import BadMessageId, InvalidArgument, MessageInUse, QueueNotFound
from spool.model.text import plural, printable
from xa import ResourceManager, Xid
from xaspool_console.console import Console, NothingChosen
from xaspool_console.formatting import gtrid
from xaspool_console.quarantine_pages import LIST, chosen, name_of
from xaspool_console.queue_pages import entry_of, first_of, search_words, searched
from xaspool_console.troubles import queue_link

if TYPE_CHECKING:
    from spool import Message, QuarantinedFile, Space

_MOST_NAMES = 1_000  # the most queues that the form for a move suggests
_MOST_COUNTED = 10  # the most queues that the page about a decision names


@dataclass(frozen=True)
class Question:
    """The page that asks before a change.

    title, sentence: the change, and its effect.
    button: the word on the button.
    back: the address of the page about the subject, e.g. a message.
    queues: the suggested targets of a move; None if the change has no target.
    seen_in: the queue that the page names for the message. If the message has moved since, the change is refused.
    """

    title: str
    sentence: str
    button: str
    back: str
    queues: tuple[str, ...] | None = None
    seen_in: str = ""


@dataclass(frozen=True)
class Change:
    """A change. ask: returns the question. act: makes the change, and returns its result and the next address.

    back: returns the address of the list from which a person chooses. The list shows a notice if nothing was chosen.
    """

    path: str
    ask: Callable[[Request], Question]
    act: Callable[[Request], tuple[str, str]]
    back: Callable[[Request], str] | None = None


def routes(console: Console, space: "Space") -> list[BaseRoute]:
    changes = [*_of_messages(space), *_of_queues(space), *_of_transactions(space), *_of_quarantine(space)]
    return [route for change in changes for route in _routes_of(console, change)]


def _routes_of(console: Console, change: Change) -> list[BaseRoute]:
    def ask(request: Request) -> Response:
        try:
            return console.page(request, "question.html", question=change.ask(request))
        except NothingChosen as error:
            if change.back is None:
                raise
            request.state.session.notice = str(error)
            return console.redirect(request, change.back(request))

    def act(request: Request) -> Response:
        sentence, following = change.act(request)
        console.samples.forget()
        console.tell(request, sentence)
        request.state.session.notice = sentence
        return console.redirect(request, following)

    return [Route(change.path, ask), Route(change.path, act, methods=["POST"])]


def _of_messages(space: "Space") -> list[Change]:
    def message_of(request: Request) -> "Message":
        entry = entry_of(space, request, preview=0)
        if entry.message is None:
            raise BadMessageId("the message is damaged: spool-admin check --repair moves it to quarantine")
        return entry.message

    def subject(request: Request) -> tuple[str, str, str]:
        message = message_of(request)
        seen_in = request.state.form.get("seen_in", message.queue)
        if seen_in != message.queue:
            raise HTTPException(409, f"message {message.id} is in queue {message.queue} now: look at it again")
        return message.id, message.queue, f"/messages/{message.id}"

    def origin_of(request: Request) -> str:
        message = message_of(request)
        origin = message.origin_queue
        if origin is None:
            sentence = f"message {message.id} came from no other queue, so the console cannot redrive it: move it"
            raise InvalidArgument(sentence)
        if origin not in space.queues():
            sentence = f"somebody deleted queue {origin}, from which message {message.id} came: move the message"
            raise InvalidArgument(f"{sentence} to another queue")
        return origin

    def ask_move(request: Request) -> Question:
        id, queue, back = subject(request)
        names = tuple(sorted(space.queues()))[:_MOST_NAMES]
        sentence = f"Message {id} leaves queue {queue}. All attempts are permitted again."
        return Question("Move a message", sentence, "Move", back, names, queue)

    def move(request: Request) -> tuple[str, str]:
        id, _, back = subject(request)
        target = request.state.form.get("queue", "").strip()
        if not target:
            raise InvalidArgument("name the queue that gets the message")
        space.move(id, target)
        return f"Message {id} is in queue {target} now.", back

    def ask_redrive(request: Request) -> Question:
        id, queue, back = subject(request)
        origin = origin_of(request)
        sentence = f"Message {id} returns from queue {queue} to its original queue {origin}, and is ready at once."
        return Question("Redrive a message", sentence, "Redrive", back, seen_in=queue)

    def redrive(request: Request) -> tuple[str, str]:
        id, queue, back = subject(request)
        origin = origin_of(request)
        if not space.redrive(queue, message_id=id):
            if space.state(id) in ("claimed", "in doubt"):
                raise MessageInUse(f"message {id} is held by a transaction: try again later")
            raise InvalidArgument(f"message {id} cannot return to queue {origin} any more: move it instead")
        return f"Message {id} is back in its original queue {origin}.", back

    def ask_delete(request: Request) -> Question:
        id, queue, back = subject(request)
        sentence = f"Message {id} of queue {queue} is deleted for good. Nothing can bring it back."
        return Question("Delete a message", sentence, "Delete", back, seen_in=queue)

    def delete(request: Request) -> tuple[str, str]:
        id, queue, _ = subject(request)
        space.delete(id)
        return f"Message {id} was deleted from queue {queue}.", queue_link(queue)

    return [
        Change("/messages/{id}/move", ask_move, move),
        Change("/messages/{id}/redrive", ask_redrive, redrive),
        Change("/messages/{id}/delete", ask_delete, delete),
    ]


def _of_queues(space: "Space") -> list[Change]:
    def subject(request: Request) -> tuple[str, str]:
        """Return the queue, and the end of a sentence about the queue's messages that match the search."""
        words = search_words(request)
        return request.path_params["queue"], f" ({words})" if words else ""

    def back(request: Request) -> str:
        first = first_of(request)
        return queue_link(request.path_params["queue"]) + (f"?after={first}" if first else "")

    def ask_redrive(request: Request) -> Question:
        queue, which = subject(request)
        count = space.redrive(queue, dry_run=True, **searched(request))
        sentence = f"{plural(count, 'message')} of queue {queue}{which} can return to the original queues."
        return Question("Redrive messages", sentence, "Redrive" if which else "Redrive all", queue_link(queue))

    def redrive(request: Request) -> tuple[str, str]:
        queue, which = subject(request)
        count = space.redrive(queue, **searched(request))
        done = f"{plural(count, 'message')} of queue {queue}{which} went back to the original queues."
        return done, queue_link(queue)

    def ask_purge(request: Request) -> Question:
        queue, which = subject(request)
        count = space.purge(queue, dry_run=True, **searched(request))
        sentence = f"This deletes {plural(count, 'message')} of queue {queue}{which} for good."
        button = "Delete" if which else "Delete all"
        return Question("Delete messages", f"{sentence} Nothing can bring them back.", button, queue_link(queue))

    def purge(request: Request) -> tuple[str, str]:
        queue, which = subject(request)
        count = space.purge(queue, **searched(request))
        return f"Deleted {plural(count, 'message')} of queue {queue}{which}.", queue_link(queue)

    def ask_resume(request: Request) -> Question:
        queue = request.path_params["queue"]
        sentence = f"Failed messages of queue {queue} that wait for their next attempt are ready at once. Its workers "
        sentence += "and routes end their pauses."
        return Question("Try again now", sentence, "Try now", queue_link(queue))

    def resume(request: Request) -> tuple[str, str]:
        queue = request.path_params["queue"]
        ready = plural(space.resume(queue), "failed message is", "failed messages are")
        return f"{ready} ready in queue {queue}. Its workers and routes end their pauses.", queue_link(queue)

    return [
        Change("/queues/{queue}/resume", ask_resume, resume),
        Change("/queues/{queue}/redrive", ask_redrive, redrive, back),
        Change("/queues/{queue}/purge", ask_purge, purge, back),
    ]


def _of_transactions(space: "Space") -> list[Change]:
    manager = ResourceManager(space)

    def xid_of(request: Request) -> Xid:
        try:
            return Xid.parse(request.path_params["xid"])
        except ValueError:
            raise HTTPException(404) from None

    def deciding(verb: str, done: str, *, commit: bool) -> Change:
        def ask(request: Request) -> Question:
            xid = xid_of(request)
            branch = space.engine.describe(xid)
            if commit:
                effect = f"adds {_counted(branch.puts, 'to')} and removes {_counted(branch.takes, 'from')}"
            else:
                effect = f"drops {_counted(branch.puts, 'for')} and returns {_counted(branch.takes, 'to')}"
            sentence = f"The decision {effect}. The coordinator gets this decision when it asks."
            return Question(f"{verb} transaction {_named(xid)}", sentence, verb, "/transactions")

        def decide(request: Request) -> tuple[str, str]:
            xid = xid_of(request)
            manager.decide_heuristically(xid, commit=commit)
            return f"Transaction {xid} is {done}.", "/transactions"

        return Change(f"/transactions/{{xid}}/{'commit' if commit else 'rollback'}", ask, decide)

    def ask_forget(request: Request) -> Question:
        sentence = "Forget a decision once the coordinator knows the decision, or will never ask for it."
        return Question(
            f"Forget the decision about {_named(xid_of(request))}", sentence, "Forget", "/transactions#decisions"
        )

    def forget(request: Request) -> tuple[str, str]:
        xid = xid_of(request)
        manager.forget(xid)
        return f"The decision about {xid} is forgotten.", "/transactions"

    return [
        deciding("Commit", "committed", commit=True),
        deciding("Roll back", "rolled back", commit=False),
        Change("/transactions/{xid}/forget", ask_forget, forget),
    ]


def _counted(counts: Mapping[str, int], preposition: str) -> str:
    """Return the numbers of messages with their queues, e.g. ``1 message to orders, 2 messages to answers``."""
    named = [f"{plural(count, 'message')} {preposition} {queue}" for queue, count in counts.items()]
    if len(named) > _MOST_COUNTED:
        others = sum(list(counts.values())[_MOST_COUNTED:])
        named[_MOST_COUNTED:] = [f"{plural(others, 'message')} {preposition} other queues"]
    return ", ".join(named) or "no message"


def _named(xid: Xid) -> str:
    """Return the text of an xid, and also its gtrid if the gtrid is text."""
    text = gtrid(str(xid))
    return f"{xid} “{text}”" if text else str(xid)


# -- quarantine --------------------------------------------------------------------------------------------------------


def _of_quarantine(space: "Space") -> list[Change]:
    """Return the changes of one file, and of several files: chosen by boxes, all of one cause, or all."""

    def subject(request: Request) -> "QuarantinedFile":
        return space.quarantined_file(name_of(request.path_params["token"]))

    def back(request: Request) -> str:
        return f"{LIST}/{request.path_params['token']}"

    def ask_restore(request: Request) -> Question:
        file = subject(request)
        sentence = f"The file {file.name} returns to the folder of queue {file.queue}. The next intake takes it there."
        return Question("Restore a file", sentence, "Restore", back(request))

    def restore(request: Request) -> tuple[str, str]:
        file = subject(request)
        return f"The file is back as {printable(space.restore_quarantined(file.name))}.", LIST

    def ask_delete(request: Request) -> Question:
        sentence = f"The file {subject(request).name} and its reason are deleted for good."
        return Question("Delete a file in quarantine", sentence, "Delete", back(request))

    def delete(request: Request) -> tuple[str, str]:
        file = subject(request)
        space.delete_quarantined(file.name)
        return f"The file {printable(file.name)} was deleted from quarantine.", LIST

    def ask_restore_several(request: Request) -> Question:
        files, which = chosen(space, request)
        count = sum(file.can_be_restored for file in files)
        sentence = f"{plural(count, 'file')}{which} can return to the folders of their queues."
        if left := len(files) - count:
            sentence += f" {plural(left, 'file')} cannot, and remain in quarantine."
        sentence += " The next intake takes the files, and refuses each file again whose problem remains."
        return Question("Restore files", sentence, "Restore", LIST)

    def restore_several(request: Request) -> tuple[str, str]:
        files, which = chosen(space, request)
        possible = [file for file in files if file.can_be_restored]
        done, problem = _each(possible, space.restore_quarantined)
        return f"{plural(done, 'file')}{which} went back to the folders of their queues.{problem}", LIST

    def ask_delete_several(request: Request) -> Question:
        files, which = chosen(space, request)
        sentence = f"This deletes {plural(len(files), 'file')}{which} for good. Nothing can bring them back."
        if damaged := sum(file.is_damage for file in files):
            sentence += f" {damaged:,} of them had acknowledged messages."
        return Question("Delete files in quarantine", sentence, "Delete", LIST)

    def delete_several(request: Request) -> tuple[str, str]:
        files, which = chosen(space, request)
        done, problem = _each(files, space.delete_quarantined)
        return f"Deleted {plural(done, 'file')}{which} from quarantine.{problem}", LIST

    return [
        Change(f"{LIST}/{{token}}/restore", ask_restore, restore),
        Change(f"{LIST}/{{token}}/delete", ask_delete, delete),
        Change("/quarantined/restore", ask_restore_several, restore_several, lambda request: LIST),
        Change("/quarantined/delete", ask_delete_several, delete_several, lambda request: LIST),
    ]


def _each(files: "Sequence[QuarantinedFile]", act: Callable[[str], object]) -> tuple[int, str]:
    """Call ``act`` with the name of each file, also after errors. Return the number of files without an error, and a
    sentence about the other files."""
    problems = []
    for file in files:
        try:
            act(file.name)
        except (InvalidArgument, QueueNotFound) as error:
            problems.append(str(error))
    failed = f" {plural(len(problems), 'file')} failed, e.g.: {printable(problems[0])}" if problems else ""
    return len(files) - len(problems), failed
