"""The README's code runs and prints what the README says it prints."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()
NUMBER = re.compile(r"-?\d+\.\d+")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def words(text: str) -> list[str]:
    """The text without its layout and its decimals, which differ in the last digits from machine to machine."""
    return NUMBER.sub("#", re.sub(r"\d+( steps|%)", r"#\1", text)).split()


def test_code_prints_what_the_readme_shows():
    code, (shown,) = blocks("python")[0], blocks("text")
    assert len([line for line in code.splitlines() if line.strip()]) == 15
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert words(result.stdout) == words(shown)
    for found, written in zip(NUMBER.findall(result.stdout), NUMBER.findall(shown), strict=True):
        # Another machine may stop at another step; a tenth, or 0.2 of k-hat and the like, is what that is worth.
        assert abs(float(found) - float(written)) < max(0.2, 0.1 * abs(float(written))), (found, written)


def test_two_commands_set_everything_up():
    commands = blocks("bash")
    assert len(commands) == 2
    assert commands[0].strip().endswith("python -m bbsvi")
    assert commands[1].strip().endswith("python -m pytest")
