"""A log of calls as docs/stream_order.md tells it: who copies what, who waits for what.

Streams are called by what they do, copies by the host memory that they use, in order of first use:
"d2h: out 0", "compute waits for out 0". Operators in a row are one "compute: works".
"""

import re

COPY = re.compile(r"copy (s\d+) (device->pinned|pinned->device) \d+ B (\w+) -> (\w+)")
RECORD = re.compile(r"record (s\d+) (e\d+)")
WAIT = re.compile(r"wait (s\d+) (e\d+) of (s\d+)")
OPERATOR = re.compile(r"(?:op|copy|fill) (s\d+) ")


class Story:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, int] = {}  # by host address
        self._last: dict[str, str] = {}  # what each stream did last
        self._recorded: dict[str, str] = {}  # what an event stands for

    def tell(self, log: list[str]) -> list[str]:
        roles = self._roles(log)
        for line in log:
            if found := COPY.match(line):
                stream, way, source, target = found.groups()
                is_out = way == "device->pinned"
                host = target if is_out else source
                number = self._names.setdefault(host, len(self._names))
                self._last[stream] = f"{'out' if is_out else 'in'} {number}"
                self._say(f"{roles[stream]}: {self._last[stream]}")
            elif found := RECORD.match(line):
                stream, event = found.groups()
                self._recorded[event] = self._last.get(stream, roles.get(stream, "others"))
            elif found := WAIT.match(line):
                stream, event, _ = found.groups()
                what = self._recorded.get(event, "what was before")
                self._say(f"{roles.get(stream, 'others')} waits for {what}")
            elif found := OPERATOR.match(line):
                is_new = self.lines[-1:] != ["compute: works"]
                if is_new and roles.get(found[1]) == "compute":
                    self._say("compute: works")
        return self.lines

    def _say(self, line: str) -> None:
        self.lines.append(line)

    @staticmethod
    def _roles(log: list[str]) -> dict[str, str]:
        roles = {}
        for line in log:
            if found := COPY.match(line):
                roles[found[1]] = "d2h" if found[2] == "device->pinned" else "h2d"
        for line in log:
            if (found := OPERATOR.match(line)) and found[1] not in roles:
                roles[found[1]] = "compute"
        return roles
