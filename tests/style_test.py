#!/usr/bin/env python3
"""Checks the project's style: sizes, the include rule between rooms, headers, banned words, clocks.

  tests/style_test.py               checks every file that git knows or would add
  tests/style_test.py --self-test   checks the checks on snippets that break each rule

Prints each violation as "file:line: text", then how many there are; exits 1 on any.
"""

import ast
import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
SUFFIXES = (".cc", ".cu", ".h", ".py", ".sh")
SCRIPTS = (".ci/run",)
# In two parts, so that this file may name them.
BANNED_WORDS = ("TO" + "DO", "FIX" + "ME", "X" + "XX")

# What a folder may include besides itself; a prefix of the included path. The longest folder that
# a file lies in decides. The arrows: base <- sched; base <- store <- catalog; base <- memory, tier,
# gpu; all of these <- engine <- rpc <- daemon; store, tier <- fsck <- one command of kvstreamctl.
BASE = ["server/base/"]
LEAVES = BASE + ["server/store/", "server/memory/", "server/tier/", "server/gpu/", "server/sched/",
                 "server/catalog/"]
INCLUDES = {
    "server/base/": [],
    "server/sched/": BASE,
    "server/store/": BASE,
    "server/catalog/": BASE + ["server/store/"],
    "server/memory/": BASE,
    "server/tier/": BASE,
    "server/gpu/": BASE,
    "server/engine/": LEAVES,
    "server/config/": BASE + ["kvstream/config/"],
    "server/metrics/": BASE + ["server/engine/stats.h", "server/rpc/stats.h", "server/tier/tier.h",
                               "server/gpu/gpu.h"],
    "server/rpc/": LEAVES + ["server/engine/", "server/config/", "server/metrics/", "kvstream/v1/"],
    "server/": [""],
    "server/fsck/": BASE + ["server/store/", "server/tier/"],
    "client/": BASE + ["kvstream/v1/"],
    # It reads files, and asks no daemon.
    "client/commands/fsck.": BASE + ["client/", "server/fsck/"],
    "bench/": [""],
    "tests/": [""],
}

# Third-party headers stop at one room's border: what they look like, and where they may be.
BORDERS = [
    (re.compile(r"liburing(/|\.h$)"), ["server/tier/uring."]),
    (re.compile(r"grpc(pp)?/|.*\.grpc\.pb\.h$"), ["server/rpc/", "client/", "tests/"]),
    (re.compile(r"prometheus/"), ["server/metrics/"]),
    (re.compile(r"google/protobuf/|.*\.pb\.h$"),
     ["server/rpc/", "server/config/", "client/", "tests/"]),
    (re.compile(r"cuda(_runtime.*)?\.h$|cublas"), ["server/gpu/", "client/cuda/", "tests/gpu/"]),
]

# A clock that may be set: a wait by it ends too early, or hours late. server/base/clock.h has the
# one that cannot. Who may read it all the same, and why.
WALL_CLOCK = re.compile(
    r"\babsl::Now\b|\bsystem_clock\b|\bCLOCK_REALTIME\b|\bgettimeofday\b"
    r"|\bAwaitWith(?:Timeout|Deadline)\b|\bWaitForNotificationWith(?:Timeout|Deadline)\b")
WALL_CLOCK_READERS = {
    "server/rpc/rpc_server.cc": "gRPC takes a deadline and turns it into its own clock at once",
    "server/rpc/session_stream.cc": "as above, of an alarm",
    "server/rpc/status_watches.cc": "as above, of an alarm",
    "server/engine/scrubber.cc": "a time of the calendar for operators; nothing waits by it",
    "server/engine/restore_run.cc": "ages of files, which outlive the machine's start",
    "server/engine/snapshotter.cc": "the same, of a snapshot",
    "client/admin.cc": "as above, of a call",
    "client/client.cc": "as above, of calls",
    "client/replay/replay.cc": "a tool that runs while somebody looks at it",
}

INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')
PROJECT_PATH = re.compile(r"(server|client|bench|tests|kvstream)/")
LITERAL_OR_COMMENT = re.compile(
    r'R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])*'"
    r"|//[^\n]*|/\*.*?\*/"
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE)
CONTAINER = re.compile(r"(typedef |static |inline |constexpr |public:|private:|protected:|\s)*"
                       r"(namespace|class|struct|union|enum|extern)\b")
FUNCTION_NAME = re.compile(r"TEST\w*\([^)]*\)|(?:\w+::)*operator[^\w\s(]+(?=\()|[\w:~]+(?=\s*\()")


def blank_literals(text):
    """C++ without comments, literals and preprocessor lines; lines keep their numbers."""
    return LITERAL_OR_COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def strip_template(head):
    """The head of a declaration without its leading attributes and template parameters."""
    head = head.lstrip()
    while True:
        if head.startswith("[["):
            head = head[head.find("]]") + 2:].lstrip()
        elif re.match(r"template\s*<", head):
            depth, i = 0, head.index("<")
            for i in range(i, len(head)):
                depth += {"<": 1, ">": -1}.get(head[i], 0)
                if depth == 0:
                    break
            head = head[i + 1:].lstrip()
        else:
            return head


def classify(head):
    """What a brace after `head`, outside functions, opens."""
    head = strip_template(head)
    if CONTAINER.match(head):
        return "container"
    return "function" if "(" in head else "initializer"


def cpp_functions(text):
    """Yields (name, first line, last line) of each function, by its braces."""
    code = blank_literals(text)
    stack = []  # What each open brace is.
    start = 0  # Where the current head begins.
    for i, c in enumerate(code):
        inside = bool(stack) and stack[-1] != "container"
        if c == "{":
            stack.append("nested" if inside else classify(code[start:i]))
            if stack[-1] == "container":
                start = i + 1
        elif c == "}" and stack:
            kind = stack.pop()
            rest = code[i + 1:].lstrip()[:1]
            # A constructor's initializers may have braces: its head goes on.
            if kind == "function" and rest not in (",", "{"):
                head = code[start:i]
                first = code.count("\n", 0, start + len(head) - len(head.lstrip())) + 1
                names = FUNCTION_NAME.findall(head) or ["?"]
                yield names[0], first, code.count("\n", 0, i) + 1
            if kind == "container" or (kind == "function" and rest not in (",", "{")):
                start = i + 1
        elif c == ";" and not inside:
            start = i + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def shell_functions(text):
    name, first = None, 0
    for number, line in enumerate(text.splitlines(), 1):
        opened = re.match(r"(\w+)\(\) \{$", line)
        if opened:
            name, first = opened.group(1), number
        elif line == "}" and name:
            yield name, first, number
            name = None


def check_sizes(path, text):
    lines = text.splitlines()
    if len(lines) > FILE_LINES_MAX:
        yield len(lines), f"the file has {len(lines)} lines, more than {FILE_LINES_MAX}"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            yield number, f"the line has {len(line)} columns, more than {COLUMNS_MAX}"
    by_language = {".cc": cpp_functions, ".cu": cpp_functions, ".h": cpp_functions,
                   ".py": python_functions}
    functions = by_language.get(os.path.splitext(path)[1], shell_functions)
    for name, first, last in functions(text):
        if last - first + 1 > FUNCTION_LINES_MAX:
            yield first, (f"function {name} has {last - first + 1} lines, "
                          f"more than {FUNCTION_LINES_MAX}")


def check_words(_, text):
    for number, line in enumerate(text.splitlines(), 1):
        for word in BANNED_WORDS:
            if re.search(rf"\b{word}\b", line):
                yield number, f"banned word {word}"


def check_header(path, text):
    if not path.endswith(".h"):
        return
    if not text.startswith(("//", "/*")):
        yield 1, "a header begins with a comment that says what it is"
    if "#pragma once" not in text.splitlines():
        yield 1, "a header has #pragma once"


def check_includes(path, text):
    if not path.endswith((".cc", ".cu", ".h")):
        return
    room = max((f for f in INCLUDES if path.startswith(f)), key=len, default=None)
    if room == "server/" and path.count("/") > 1:
        yield 1, "this room is not in the include rule of tests/style_test.py"
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        included = match.group(1)
        if room and PROJECT_PATH.match(included):
            if not included.startswith(tuple([room] + INCLUDES[room])):
                yield number, f"{room} may not include {included}"
        for pattern, places in BORDERS:
            if pattern.match(included) and not path.startswith(tuple(places)):
                yield number, f"{included} stops at {', '.join(places)}"


def check_clocks(path, text):
    if not path.startswith(("server/", "client/")) or not path.endswith((".cc", ".cu", ".h")):
        return
    if path in WALL_CLOCK_READERS:
        return
    for number, line in enumerate(blank_literals(text).splitlines(), 1):
        for clock in WALL_CLOCK.findall(line):
            yield number, f"{clock} may be set, a wait takes the clock of server/base/clock.h"


def violations(path, text):
    found = []
    for check in (check_sizes, check_words, check_header, check_includes, check_clocks):
        found += [f"{path}:{line}: {what}" for line, what in check(path, text)]
    return found


def project_files():
    """Paths below ROOT: what git tracks or would add, or every file where there is no git."""
    listing = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False) if has_git() else None
    if listing is not None and listing.returncode == 0:
        paths = os.fsdecode(listing.stdout).split("\0")
    else:
        paths = []
        for folder, folders, files in os.walk(ROOT):
            folders[:] = [f for f in folders if f not in ("build", ".git", "__pycache__")]
            paths += [os.path.relpath(os.path.join(folder, f), ROOT) for f in files]
    return sorted({p for p in paths if (p.endswith(SUFFIXES) or p in SCRIPTS)
                   and os.path.isfile(os.path.join(ROOT, p))})


def has_git():
    return os.path.exists(os.path.join(ROOT, ".git")) and any(
        os.access(os.path.join(d, "git"), os.X_OK) for d in os.get_exec_path())


def main():
    files = project_files()
    found = []
    for path in files:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            found += violations(path, file.read())
    for line in found:
        print(line)
    print(f"{len(found)} violations in {len(files)} files")
    return 1 if found or not files else 0


class SelfTest(unittest.TestCase):
    """Each rule finds what breaks it, and lets pass what does not."""

    def assert_finds(self, path, text, *expected):
        found = violations(path, text)
        self.assertEqual(len(found), len(expected), found)
        for line, words in zip(found, expected):
            self.assertIn(words, line)

    def test_long_file(self):
        self.assert_finds("tests/a.cc", "\n" * 400)
        self.assert_finds("tests/a.cc", "\n" * 401, "tests/a.cc:401: the file has 401 lines")

    def test_long_line(self):
        self.assert_finds("a.sh", "x" * 100)
        self.assert_finds("a.sh", "\n" + "x" * 101, "a.sh:2: the line has 101 columns")

    def test_long_cpp_function(self):
        for head in ("int F(int a) {", "  void C::F() const {", "TEST(A, F) {",
                     "template <typename T, int n = 3>\nT F() {",
                     "C::F() : a_{1}, b_(2) {", "C& C::operator=(C&& o) {", "auto f = [](int F) {"):
            fits = head + "\n" * (69 - head.count("\n")) + "}\n"
            self.assert_finds("tests/a.cc", fits)
            self.assert_finds("tests/a.cc", fits.replace("}\n", "\n}\n"), "has 71 lines")

    def test_long_method_in_class_in_namespace(self):
        text = ("namespace a {\nclass B final : public C<int> {\n public:\n  B() = default;\n"
                "  int F() {\n" + "\n" * 70 + "  }\n};\n}\n")
        self.assert_finds("tests/a.cc", text, "a.cc:5: function F has 72 lines")

    def test_long_things_that_are_no_function(self):
        body = "{\n" + "\n" * 90 + "}"
        for head in ("namespace a ", "struct A ", "enum class A : int ", "int a[] = "):
            self.assert_finds("tests/a.cc", head + body + ";\n")

    def test_braces_in_literals_and_macros_do_not_count(self):
        lines = ["#define M(x) \\", "  do { \\", "  } while (", "const char* s = \"{\"; // {",
                 "char c = '{'; /* {", "*/ int n = 1'000;", "auto r = R\"(}{{)\";", "void F() {"]
        self.assert_finds("tests/a.cc", "\n".join(lines) + "\n" * 70 + "}\n", "function F has 71")

    def test_long_python_and_shell_functions(self):
        self.assert_finds("a.py", "def f():\n" + "    pass\n" * 70, "function f has 71 lines")
        self.assert_finds("a.sh", "f() {\n" + "  :\n" * 69 + "}\n", "function f has 71 lines")

    def test_banned_words(self):
        for word in BANNED_WORDS:
            self.assert_finds("a.py", f"# {word}: later\n", f"a.py:1: banned word {word}")
        self.assert_finds("a.sh", "mktemp /tmp/a.XXXXXX\n")

    def test_header(self):
        self.assert_finds("server/base/a.h", "// What it is.\n#pragma once\n")
        self.assert_finds("server/base/a.h", "#pragma once\n", "begins with a comment")
        self.assert_finds("server/base/a.h", "// What it is.\n", "#pragma once")

    def test_include_rule(self):
        for path, included, allowed in (
                ("server/sched/a.cc", "server/base/types.h", True),
                ("server/sched/a.cc", "server/sched/a.h", True),
                ("server/sched/a.cc", "server/tier/tier.h", False),
                ("server/base/a.cc", "server/sched/router.h", False),
                ("server/store/a.cc", "server/tier/tier.h", False),
                ("server/engine/a.cc", "server/sched/router.h", True),
                ("server/engine/a.cc", "server/rpc/a.h", False),
                ("server/tier/a.cc", "server/engine/engine.h", False),
                ("server/metrics/a.cc", "server/engine/stats.h", True),
                ("server/metrics/a.cc", "server/engine/engine.h", False),
                ("server/rpc/a.cc", "server/engine/api.h", True),
                ("server/rpc/a.cc", "server/daemon.h", False),
                ("server/daemon.cc", "server/rpc/a.h", True),
                ("client/a.cc", "server/engine/api.h", False),
                ("server/new/a.cc", "server/base/types.h", None)):
            expected = {True: (), False: ("may not include",), None: ("is not in the",)}[allowed]
            with self.subTest(path=path, included=included):
                self.assert_finds(path, f'#include "{included}"\n', *expected)

    def test_borders(self):
        for included, allowed, refused in (
                ("liburing.h", "server/tier/uring.cc", "server/tier/file_tier.cc"),
                ("grpcpp/grpcpp.h", "server/rpc/a.cc", "server/daemon.cc"),
                ("prometheus/counter.h", "server/metrics/a.cc", "server/rpc/a.cc"),
                ("google/protobuf/message.h", "server/config/a.cc", "server/engine/a.cc"),
                ("cuda_runtime_api.h", "server/gpu/cuda_gpu.cc", "server/engine/engine.cc"),
                ("cuda.h", "client/cuda/copier.cc", "client/client.cc")):
            with self.subTest(included=included):
                self.assert_finds(allowed, f"#include <{included}>\n")
                self.assert_finds(refused, f"#include <{included}>\n", "stops at")
        self.assert_finds("bench/a.cc", '#include "kvstream/v1/types.pb.h"\n', "stops at")

    def test_clocks(self):
        for clock in ("absl::Now()", "std::chrono::system_clock::now()", "CLOCK_REALTIME",
                      "mu.AwaitWithTimeout(c, d)", "n.WaitForNotificationWithDeadline(d)"):
            for path in ("server/engine/a.cc", "client/a.cc"):
                self.assert_finds(path, f"auto t = {clock};\n", "may be set")
            for path in ("tests/a.cc", "bench/a.cc", "client/admin.cc"):
                self.assert_finds(path, f"auto t = {clock};\n")
        self.assert_finds("server/engine/a.cc", "// absl::Now may be set.\nauto t = Now();\n")
        self.assert_finds("server/engine/a.cc", "auto t = absl::Nowhere();\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        unittest.main(argv=sys.argv[:1])
    if sys.argv[1:]:
        sys.exit(__doc__)
    sys.exit(main())
