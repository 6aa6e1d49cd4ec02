# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: 2026 The Headwise authors
"""Every ```cpp block of the documentation is a piece of a compiled example.

In an example, `// [snippet: name]` and `// [/snippet]` stand around the piece. In a document, the
line before the block names it:

    <!-- snippet: examples/01_views.cpp padded_buffer -->

Fails on a block without such a line, on one whose text is not the example's (its common indentation
taken away), on an example that examples/meson.build does not build, and on a link to a file that
does not exist.

    docs_snippets.py [--write] [FILE.md...]      (default: docs/*.md, README.md and CONTRIBUTING.md)

--write puts the examples' text into the blocks.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test" / "support"))
import checks

MARK = re.compile(r"<!-- snippet: (\S+) (\S+) -->")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
BEGIN = re.compile(r"//\s*\[snippet: (\S+)\]$")
END = re.compile(r"//\s*\[/snippet\]$")


class Wrong(Exception):
    pass


def snippets_of(path):
    """name -> text of the marked pieces of an example."""
    found, name, lines = {}, None, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        begin, end = BEGIN.search(line.strip()), END.search(line.strip())
        if begin and name:
            raise Wrong(f"{path.name}:{number}: snippet {name} is not closed")
        if end and not name:
            raise Wrong(f"{path.name}:{number}: [/snippet] without a beginning")
        if begin:
            name, lines = begin[1], []
            if name in found:
                raise Wrong(f"{path.name}:{number}: there are two snippets {name}")
        elif end:
            found[name], name = textwrap.dedent("\n".join(lines)).strip("\n"), None
        elif name:
            lines.append(line)
    if name:
        raise Wrong(f"{path.name}: snippet {name} is not closed")
    return found


def is_built(example):
    """An example is built by name, or within a folder that examples/meson.build names."""
    named = set(re.findall(r"'([\w./-]+)'", (ROOT / "examples" / "meson.build").read_text()))
    parts = pathlib.PurePosixPath(example).parts[1:]
    names = {parts[0], parts[0].split(".")[0], "/".join(parts)}
    return bool(names & named) or any(name.startswith(parts[0] + "/") for name in named)


def wanted_text(example, name):
    path = ROOT / example
    if not example.startswith("examples/") or not path.exists():
        raise Wrong(f"there is no example {example}")
    if not is_built(example):
        raise Wrong(f"{example} is not built by examples/meson.build")
    found = snippets_of(path)
    if name not in found:
        raise Wrong(f"{example} has no snippet {name}")
    return found[name]


def blocks_of(lines):
    """(line of the fence, line of its end, the mark before it or None) of each ```cpp block."""
    at = 0
    while at < len(lines):
        if lines[at].startswith("```"):
            end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith("```")), None)
            if end is None:
                raise Wrong(f"line {at + 1}: the block does not end")
            if lines[at][3:].strip() in ("cpp", "c++", "cuda", "c"):
                yield at, end, MARK.fullmatch(lines[at - 1].strip()) if at else None
            at = end
        at += 1


def missing_links(document, text):
    outside_code = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    targets = {t for t in LINK.findall(outside_code) if not (document.parent / t).exists()}
    return [f"links to {target}, which does not exist" for target in sorted(targets)]


def check_document(document, write):
    """What is wrong with one document, and the number of its blocks."""
    text = document.read_text()
    lines = text.splitlines()
    wrong, count, shift = [], 0, 0
    try:
        for begin, end, mark in list(blocks_of(lines)):
            count += 1
            begin, end = begin + shift, end + shift
            where = f"line {begin + 1 - shift}"
            if mark is None:
                wrong.append(f"{where}: a code block without a snippet line before it")
                continue
            try:
                wanted = wanted_text(mark[1], mark[2]).splitlines()
            except Wrong as problem:
                wrong.append(f"{where}: {problem}")
                continue
            if lines[begin + 1 : end] == wanted:
                continue
            if write:
                lines[begin + 1 : end] = wanted
                shift += len(wanted) - (end - begin - 1)
            else:
                wrong.append(f"{where}: not the text of {mark[1]} {mark[2]} (try --write)")
    except Wrong as problem:
        wrong.append(str(problem))
    if write and "\n".join(lines) + "\n" != text:
        document.write_text("\n".join(lines) + "\n")
        print(f"wrote {document}")
    return "\n".join(wrong + missing_links(document, text)), count


def main():
    arguments = sys.argv[1:]
    write = "--write" in arguments
    documents = [pathlib.Path(name).resolve() for name in arguments if name != "--write"]
    if not documents:
        documents = sorted((ROOT / "docs").glob("*.md"))
        documents += [ROOT / n for n in ("README.md", "CONTRIBUTING.md") if (ROOT / n).exists()]
    report = checks.Report()
    for document in documents:
        wrong, count = check_document(document, write)
        name = document.relative_to(ROOT) if document.is_relative_to(ROOT) else document
        report.check(f"code of {name} ({count} blocks)", wrong)
    report.finish()


if __name__ == "__main__":
    main()
