"""Holds a terminal for the loquat binary: pty_chat.py SCENARIO BINARY ARGUMENTS...

Exits 1, telling on stderr, when the terminal does not show what the scenario waits for.
"""

import os
import pty
import re
import select
import sys
import termios
import time

PROMPT = ">>> "
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    def __init__(self, argv):
        self.shown = ""
        self.read_up_to = 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # A press of Ctrl-C would discard what was written and not read yet.
            settings = termios.tcgetattr(0)
            settings[3] |= termios.NOFLSH
            termios.tcsetattr(0, termios.TCSANOW, settings)
            os.execv(argv[0], argv)

    def fail(self, why):
        os.kill(self.pid, 9)
        sys.exit(f"{why}; the terminal shows:\n{self.shown!r}")

    def read(self, seconds):
        """Whether anything more came, or None at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # How Linux says that the other side is gone.
            data = b""
        self.shown += data.decode("utf-8", "replace")
        return True if data else None

    def expect(self, pattern, seconds=20):
        """Waits for a match after the last one, and returns it."""
        deadline = time.monotonic() + seconds
        while True:
            match = re.compile(pattern).search(self.shown, self.read_up_to)
            if match:
                self.read_up_to = match.end()
                return match
            if self.read(0.1) is None or time.monotonic() > deadline:
                self.fail(f"waited for {pattern!r}")

    def say(self, line):
        """Types a line when asked for one."""
        self.expect(re.escape(PROMPT))
        self.press(line + "\r")
        self.expect(re.escape(line))

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def ends(self, code, seconds=20):
        deadline = time.monotonic() + seconds
        while self.read(0.1) is not None:
            if time.monotonic() > deadline:
                self.fail("it did not end")
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if status != code:
            sys.exit(f"ended with {status}, not {code}; shown: {self.shown!r}")


def ask(terminal, question):
    """The length of the prompt that the question made, from the closing line."""
    terminal.say(question)
    return int(terminal.expect(r"AAAA\r\n.*prompt (\d+) tokens")[1])


def memory(terminal):
    terminal.expect("/help for help")
    first = ask(terminal, "first question")
    second = ask(terminal, "other question")
    if second < first + len("AAAA") + len("other question"):
        terminal.fail(f"prompts of {first} and {second} tokens")
    kept = int(terminal.expect(r"\((\d+) kept from before\)")[1])
    if kept < first:
        terminal.fail(f"of {second} tokens only {kept} were kept from before")
    terminal.say("/clear")
    again = ask(terminal, "first question")
    if again != first:
        terminal.fail(f"after /clear a prompt of {again} tokens, not {first}")
    terminal.expect(re.escape(PROMPT))
    terminal.press(CTRL_D)
    terminal.ends(0)


def commands(terminal):
    terminal.say("/help")
    terminal.expect("/clear .*forget")
    terminal.say("/nope")
    terminal.expect("There is no /nope")
    terminal.say("")
    # More than one word is something to say, whatever it starts with.
    terminal.say("/etc is what?")
    terminal.expect("AAAA")
    terminal.expect(re.escape(PROMPT))
    terminal.press(CTRL_C)
    terminal.expect("/exit leaves")
    terminal.expect(re.escape(PROMPT))
    # A line that Ctrl-C gave up is neither asked nor kept.
    terminal.press("given up" + CTRL_C)
    terminal.expect("/exit leaves")
    terminal.say("/exit")
    terminal.ends(0)
    if terminal.shown.count("AAAA") != 1:
        terminal.fail("something was asked that should not have been")


def interrupt(terminal):
    for question in ["one", "two"]:
        terminal.say(question)
        terminal.expect("AAAA")
        terminal.press(CTRL_C)
        terminal.expect("stopped")
    # Pressed twice in haste, the second time is not held against the next answer.
    terminal.say("three")
    terminal.expect("AAAA")
    terminal.press(CTRL_C + CTRL_C)
    terminal.expect("stopped")
    terminal.say("four")
    terminal.expect("AAAA")
    terminal.press(CTRL_C)
    terminal.expect("stopped")
    terminal.say("/exit")
    terminal.ends(0)


def full(terminal):
    terminal.say("a question of some length")
    terminal.expect("AAAA")
    terminal.say("a second of the same length")
    terminal.expect("error: .*context of 100; /clear starts over")
    terminal.say("/clear")
    terminal.say("a question of some length")
    terminal.expect("AAAA")
    terminal.say("/exit")
    terminal.ends(0)


def no_template(terminal):
    terminal.expect("error: .*chat template.*generate")
    terminal.ends(4)
    if PROMPT in terminal.shown:
        sys.exit("it asked for a line all the same")


def no_json(terminal):
    terminal.expect("error: `--output` of a conversation .*prompt")
    terminal.ends(2)


def escapes(terminal):
    terminal.say("hi")
    terminal.expect("\r\n\ufffd{4}\r\n")
    terminal.say("/exit")
    terminal.ends(0)


def tool(terminal):
    terminal.say("Is it raining?")
    terminal.expect(r'→ get_weather \{"city": ')
    terminal.expect("get_weather = ")
    terminal.press("It is.\r")
    terminal.expect("AAAA")
    terminal.say("And now?")
    terminal.expect("get_weather = ")
    terminal.press(CTRL_C)
    terminal.expect("taken back")
    # What was taken back is not in the way of what comes next.
    terminal.say("And then?")
    terminal.expect("get_weather = ")
    terminal.press("No.\r")
    terminal.expect("AAAA")
    terminal.say("/exit")
    terminal.ends(0)


def thinking(terminal):
    terminal.say("hi")
    dimmed = "\x1b\\[2m{}\x1b\\[0m"
    terminal.expect("({})+{}AAAA".format(dimmed.format("A+"), dimmed.format("\r\n")))
    if "think>" in terminal.shown:
        terminal.fail("a mark was shown")
    terminal.say("/exit")
    terminal.ends(0)


def redirected(terminal):
    terminal.press("a question\r" + CTRL_D)
    terminal.expect("a question\r\nAAAA\r\n")
    terminal.ends(0)
    if "\x1b" in terminal.shown or PROMPT in terminal.shown:
        sys.exit(f"not plain: {terminal.shown!r}")


if __name__ == "__main__":
    scenarios = [
        memory,
        commands,
        interrupt,
        full,
        no_template,
        no_json,
        escapes,
        tool,
        thinking,
        redirected,
    ]
    named = {scenario.__name__: scenario for scenario in scenarios}
    scenario, command = named[sys.argv[1]], sys.argv[2:]
    if scenario is redirected:
        command = ["/bin/sh", "-c", '"$0" "$@" 2>/dev/null | cat', *command]
    scenario(Terminal(command))
