"""What runs inside Redis: a guard is compared and rows are written in one step, which nobody sees half done."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Numbers of Lua are exact up to 2^53, offsets go to 2^63: they are compared as digits.
_BEFORE = """
local function before(one, other)
    if #one ~= #other then return #one < #other end
    return one < other
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    text: str

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


PUT = Script(
    _BEFORE
    + """
-- KEYS: the row; its guard, if it has one. ARGV: structure, source, version, lives in ms, guard lives in ms,
-- 'put' or 'delete', then what is put. Answers 1, 0 if something newer is there, or the type that is in the way.
local guard = KEYS[2] and redis.call('GET', KEYS[2])
if guard and ARGV[2] ~= '' then
    local source, version = string.match(guard, '^(.*) (%d+)$')
    if source == ARGV[2] and before(ARGV[3], version) then return 0 end
end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= ARGV[1] then return kind end
if ARGV[6] == 'delete' then
    redis.call('DEL', KEYS[1])
elseif ARGV[1] == 'string' then
    redis.call('SET', KEYS[1], ARGV[7])
else
    -- Only what is there: of a script that has written once, Redis no longer says that memory is short.
    if kind ~= 'none' then redis.call('DEL', KEYS[1]) end
    for first = 7, #ARGV, 1000 do
        redis.call('HSET', KEYS[1], unpack(ARGV, first, math.min(first + 999, #ARGV)))
    end
end
if ARGV[6] == 'put' and ARGV[4] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
if not KEYS[2] then return 1 end
if ARGV[2] == '' then
    redis.call('DEL', KEYS[2])
elseif ARGV[5] == '' then
    redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[3])
else
    redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[3], 'PX', ARGV[5])
end
return 1
"""
)

APPEND = Script(
    _BEFORE
    + """
-- KEYS: the stream or list; its guard, a hash. ARGV: structure, the field of the guard, the next offset, the greatest
-- length, then of each row its offset, how many values it has, and these. Answers how many were appended.
local guard = redis.call('HGET', KEYS[2], ARGV[2])
local added, at = 0, 5
while at <= #ARGV do
    local size = tonumber(ARGV[at + 1])
    if not (guard and before(ARGV[at], guard)) then
        if ARGV[1] == 'stream' then
            redis.call('XADD', KEYS[1], '*', unpack(ARGV, at + 2, at + 1 + size))
        else
            redis.call('RPUSH', KEYS[1], unpack(ARGV, at + 2, at + 1 + size))
        end
        added = added + 1
    end
    at = at + 2 + size
end
if added > 0 and ARGV[4] ~= '' then
    if ARGV[1] == 'stream' then redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[4])
    else redis.call('LTRIM', KEYS[1], '-' .. ARGV[4], -1) end
end
if not guard or before(guard, ARGV[3]) then redis.call('HSET', KEYS[2], ARGV[2], ARGV[3]) end
return added
"""
)

Call = tuple["Sequence[str]", "Sequence[str | bytes]"]
"""Keys and arguments of one call of a script."""
# As much at once as both sides hold in memory without harm.
_CALLS, _SIZE = 250, 1_000_000


def call(client: Any, script: Script, calls: Sequence[Call]) -> list[Any]:
    """The answers, errors among them. A server that was restarted has forgotten the script and is told again."""
    redis = require("redis", extra="redis")
    answers: list[Any] = []
    for some in _pieces(calls):
        found = _sent(client, script, some)
        if any(isinstance(answer, redis.exceptions.NoScriptError) for answer in found):
            client.script_load(script.text)
            found = _sent(client, script, some)
        answers += found
    return answers


def _sent(client: Any, script: Script, calls: Sequence[Call]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for keys, arguments in calls:
        pipeline.evalsha(script.sha, len(keys), *keys, *arguments)
    found: list[Any] = pipeline.execute(raise_on_error=False)
    return found


def _pieces(calls: Sequence[Call]) -> Iterator[list[Call]]:
    piece: list[Call] = []
    size = 0
    for one in calls:
        if len(piece) == _CALLS or size > _SIZE:
            yield piece
            piece, size = [], 0
        piece.append(one)
        size += sum(len(argument) for argument in one[1])
    if piece:
        yield piece
