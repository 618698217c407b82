"""What consent tells the session about its questions."""

from libs.contracts.consent import ActionAsked, ActionClosed, ActionNotAsked, DecisionRefused
from services.session.domain.draft import Draft


def on_asked(draft: Draft, message: ActionAsked) -> None:
    """The question is stored and open."""
    action = draft.state.actions.get(message.action)
    if action is None or action.asked:
        return
    asked = action.model_copy(update={"asked": True, "question": message.question})
    draft.set(actions={**draft.state.actions, action.id: asked})
    draft.line("action.asked", message.question, turn=action.asker.turn, action=action.id)
    draft.remember(kind="action", action=action.id, became="asked", question=message.question)


def on_not_asked(draft: Draft, message: ActionNotAsked) -> None:
    """Consent refused to ask; the steps are dropped and the user is told."""
    if message.action not in draft.state.actions:
        return
    _drop(draft, message.action)
    if message.limit:
        draft.limits.append(message.limit)
    draft.line("action.refused", message.reason, turn="", action=message.action)
    draft.say(f"I wanted to ask you something, but could not: {message.reason}.", turn="")


def on_closed(draft: Draft, message: ActionClosed) -> None:
    """Closed without a decision, or a grant that ran out."""
    if message.state == "lapsed":
        draft.line("action.lapsed", message.reason, turn="", action=message.action)
        return
    if message.action not in draft.state.actions:
        return
    _drop(draft, message.action)
    match message.state:
        case "expired":
            draft.line("action.expired", message.reason, turn="", action=message.action)
        case "superseded":
            draft.line("action.superseded", message.reason, turn="", action=message.action)
        case "cancelled":
            draft.line("action.cancelled", message.reason, turn="", action=message.action)
    draft.remember(kind="action", action=message.action, became=message.state, question="")


def on_refused(draft: Draft, message: DecisionRefused) -> None:
    """A decision that did not count: shown, and nothing ran."""
    said = message.outcome.replace("_", " ")
    draft.line("action.refused", f"{said}, by {message.by}", turn="", action=message.action)
    if message.text:
        draft.say(f'"{message.text}" changed nothing: {said}.', turn="")


def _drop(draft: Draft, action: str) -> None:
    draft.set(actions={id: kept for id, kept in draft.state.actions.items() if id != action})
