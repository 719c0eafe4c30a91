"""Requests and replies of JSON-RPC 2.0: what the suite and an implementation say to each other, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from goldformer.adapters.process.faults import MISSING, Unasked, WireError, shown
from goldformer.adapters.process.schema import INVALID_REQUEST, PARSE_ERROR, ErrorObject
from goldformer.adapters.process.wire import from_line, to_line, validated


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it was read."""

    id: int
    method: str
    params: Mapping[str, Any]


class BadRequest(WireError):
    """A line that is no request; `code` is JSON-RPC's, `id` the request's, where it could be read."""

    def __init__(self, code: int, message: str, id_: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.id = id_


def request_line(id_: int, method: str, params: Mapping[str, Any]) -> bytes:
    """A request."""
    return to_line({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})


def result_line(id_: int, result: Any) -> bytes:
    """A reply that holds a result."""
    return to_line({"jsonrpc": "2.0", "id": id_, "result": result})


def error_line(id_: int | None, code: int, message: str, data: str | None = None) -> bytes:
    """A reply that holds an error."""
    error = {"code": code, "message": message} | ({"data": data} if data else {})
    return to_line({"jsonrpc": "2.0", "id": id_, "error": error})


def read_reply(line: bytes, id_: int) -> Any | ErrorObject:
    """The result of the request `id_`, or the error that came instead; WireError when the line is no reply to it."""
    message = from_line(line)
    _refuse_other_version(message)
    if "error" in message and "result" in message:
        raise WireError("the reply has both a result and an error; it has one of them")
    if "error" not in message and "result" not in message:
        raise WireError(f"the reply has neither a result nor an error; it has {shown(list(message))}")
    _refuse_other_keys(message, ("jsonrpc", "id", "error" if "error" in message else "result"), "reply")
    unreadable = "error" in message and message.get("id", 0) is None
    if not unreadable and (type(message.get("id")) is not int or message["id"] != id_):
        raise Unasked.at("id", message.get("id", MISSING), f"{id_}, that of the request")
    if "error" in message:
        return validated(ErrorObject, message["error"], "error")
    return message["result"]


def read_request(line: bytes) -> Request:
    """The request that a line holds; BadRequest when it holds none."""
    try:
        message = from_line(line)
    except WireError as error:
        raise BadRequest(PARSE_ERROR, str(error)) from error
    id_ = message.get("id")
    known = id_ if type(id_) is int and id_ >= 0 else None
    try:
        _refuse_other_version(message)
        _refuse_other_keys(message, ("jsonrpc", "id", "method", "params"), "request")
        if known is None:
            raise WireError.at("id", message.get("id", MISSING), "an integer of at least 0")
        method, params = message.get("method", MISSING), message.get("params", {})
        if not isinstance(method, str):
            raise WireError.at("method", method, "the name of a component, initialize or shutdown")
        if not isinstance(params, dict):
            raise WireError.at("params", params, "an object of arguments by name")
    except WireError as error:
        raise BadRequest(INVALID_REQUEST, str(error), known) from error
    return Request(known, method, params)


def _refuse_other_version(message: Mapping[str, Any]) -> None:
    if message.get("jsonrpc") != "2.0":
        raise WireError.at("jsonrpc", message.get("jsonrpc", MISSING), '"2.0"')


def _refuse_other_keys(message: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    if other := [key for key in message if key not in known]:
        raise WireError(f"the {what} has the key {shown(other[0])}; its keys are {', '.join(known)}")
