"""Headless Chromium, with ./check --long: pages as a reader's browser draws them."""

import subprocess


def run(url, home, *flags):
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=5000",
               f"--user-data-dir={home}/profile", *flags, url]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=120)
    messages = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
    assert done.returncode == 0 and messages == [], messages
    return done.stdout.decode()


# A script of the page's own kind would be refused by its policy: marks are counted in the document that the browser leaves.
def drawn(url, home, *flags):
    """The document once its scripts have run; nothing was said on the console."""
    return run(url, home, "--dump-dom", *flags)


def picture(url, home, width, height, *flags):
    """A screenshot as PNG bytes."""
    path = home / f"page-{width}.png"
    run(url, home, f"--screenshot={path}", f"--window-size={width},{height}", "--hide-scrollbars", *flags)
    return path.read_bytes()
