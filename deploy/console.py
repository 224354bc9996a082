"""What `segue serve` shows a person: one line per event, progress in place on a terminal; decides nothing."""

from collections.abc import Callable
from typing import TextIO

from deploy.reports import Loading, Planned, Ready, Report, describe


class Console:
    """Lines of several processes on one stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._in_place = stream.isatty()
        self._progress = ""

    def say(self, text: str) -> None:
        """One line, or several."""
        for line in text.splitlines():
            self._write(f"segue: {line}\n")

    def listener(self, name: str) -> Callable[[Report], None]:
        """Shows the reports of the process `name`."""
        return lambda report: self._show(name, report)

    def _show(self, name: str, report: Report) -> None:
        match report:
            case Loading():
                self._show_progress(name, report)
            case Planned():
                self.say(f"{name}: {describe(report)}")
            case Ready():
                pass  # Its supervisor says so, with the process id.

    def _show_progress(self, name: str, report: Loading) -> None:
        text = f"segue: {name}: {describe(report)}"
        if self._in_place:
            self._stream.write("\r" + text.ljust(len(self._progress)))
            self._stream.flush()
            self._progress = text
        elif report.done_bytes == report.total_bytes:
            self._write(text + "\n")

    def _write(self, line: str) -> None:
        if self._progress:
            self._stream.write("\n")
            self._progress = ""
        self._stream.write(line)
        self._stream.flush()
