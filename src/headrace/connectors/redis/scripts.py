"""Lua scripts that compare a guard and write rows in one atomic step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Lua's numbers are exact up to 2^53 but offsets go to 2^63, so they are compared as digits.
_BEFORE = """
local function before(left, right)
    if #left ~= #right then return #left < #right end
    return left < right
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
-- A script that fails keeps what it has written. The guard goes first: it lets the same version through again. What
-- the user may have no right to comes before the old row is deleted. Short memory is reported to the first write only.
if KEYS[2] then
    if ARGV[2] == '' then
        redis.call('DEL', KEYS[2])
    elseif ARGV[5] == '' then
        redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[3])
    else
        redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[3], 'PX', ARGV[5])
    end
end
if ARGV[6] == 'delete' then
    redis.call('DEL', KEYS[1])
elseif ARGV[1] == 'string' then
    if ARGV[4] == '' then redis.call('SET', KEYS[1], ARGV[7])
    else redis.call('SET', KEYS[1], ARGV[7], 'PX', ARGV[4]) end
else
    if KEYS[2] and ARGV[4] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
    if kind ~= 'none' then
        if ARGV[8] then redis.call('HSET', KEYS[1], ARGV[7], ARGV[8]) end
        redis.call('DEL', KEYS[1])
    end
    for first = 7, #ARGV, 1000 do
        redis.call('HSET', KEYS[1], unpack(ARGV, first, math.min(first + 999, #ARGV)))
    end
    if ARGV[4] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
end
return 1
"""
)

MAX_VALUES = 7_900
"""Maximum number of names and values of one entry. Lua passes at most 8,000 values to a command."""

APPEND = Script(
    _BEFORE
    + """
-- KEYS: the stream or list; its guard, a hash. ARGV: structure, the field of the guard, the next offset, the greatest
-- length, then of each row its offset, how many values it has, and these. Answers how many were appended.
--
-- A guard is the next offset to append; after a failure inside a record it is 'offset+rows': so many rows of that
-- record are there. A script that fails keeps what it has written: whatever the user may have no right to is called
-- before the first row, where it changes nothing, and an error at a row moves the guard to that row.
local guard = redis.call('HGET', KEYS[2], ARGV[2])
local offset, rows = string.match(guard or '0', '^(%d+)%+?(%d*)$')
if not offset then return redis.error_reply('ERR the guard is ' .. guard .. ', expected an offset') end
rows = tonumber(rows) or 0
local stream, maxlen = ARGV[1] == 'stream', ARGV[4]
local function trim()
    if stream then redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', maxlen)
    else redis.call('LTRIM', KEYS[1], '-' .. maxlen, -1) end
end
local function append(first, last)
    if stream then redis.call('XADD', KEYS[1], '*', unpack(ARGV, first, last))
    else redis.call('RPUSH', KEYS[1], unpack(ARGV, first, last)) end
end
redis.call('HSET', KEYS[2], ARGV[2], guard or '0')
if maxlen ~= '' then trim() end
local added, at, current, turn = 0, 5, '', 0
while at <= #ARGV do
    local size = tonumber(ARGV[at + 1])
    if ARGV[at] == current then turn = turn + 1 else current, turn = ARGV[at], 0 end
    if not (before(current, offset) or (current == offset and turn < rows)) then
        local ok, err = pcall(append, at + 2, at + 1 + size)
        if not ok then
            if added > 0 then redis.call('HSET', KEYS[2], ARGV[2], current .. '+' .. turn) end
            return type(err) == 'table' and err or redis.error_reply(err)
        end
        added = added + 1
    end
    at = at + 2 + size
end
if before(offset, ARGV[3]) then redis.call('HSET', KEYS[2], ARGV[2], ARGV[3]) end
if added > 0 and maxlen ~= '' then trim() end
return added
"""
)

Call = tuple["Sequence[str]", "Sequence[str | bytes]"]
"""The keys and arguments of one script call."""
# Limits of one request, so that client and server need little memory.
_CALLS, _SIZE = 250, 1_000_000


def call(client: Any, script: Script, calls: Sequence[Call]) -> list[Any]:
    """Call a script; return the replies, including errors. Loads the script again after a restart of the server."""
    redis = require("redis", extra="redis")
    replies: list[Any] = []
    for chunk in _chunks(calls):
        found = _execute(client, script, chunk)
        if any(isinstance(reply, redis.exceptions.NoScriptError) for reply in found):
            client.script_load(script.text)
            found = _execute(client, script, chunk)
        replies += found
    return replies


def _execute(client: Any, script: Script, calls: Sequence[Call]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for keys, arguments in calls:
        pipeline.evalsha(script.sha, len(keys), *keys, *arguments)
    found: list[Any] = pipeline.execute(raise_on_error=False)
    return found


def _chunks(calls: Sequence[Call]) -> Iterator[list[Call]]:
    chunk: list[Call] = []
    size = 0
    for keys, arguments in calls:
        if len(chunk) == _CALLS or size > _SIZE:
            yield chunk
            chunk, size = [], 0
        chunk.append((keys, arguments))
        size += sum(len(argument) for argument in arguments)
    if chunk:
        yield chunk
