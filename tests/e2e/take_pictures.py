"""Takes the README's pictures: `cmake --build BUILD --target pictures`. A job on the simulated device, the live page while it
trains, and the page that its reports make. Needs Chromium."""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time

import browser
import support
from support import RECVPOOL, SOURCE, TRAINER, clean_environment, simulated

PICTURES = os.path.join(SOURCE, "dashboards", "pictures")
IS_DRAWN = "document.body.innerText.includes('Nothing to do') && document.querySelector('#status').textContent.includes('as of') && document.querySelectorAll('.life-frame').length >= 32"
# A step in which nothing had to wait long for the machine's other work.
IS_EVEN = "Math.max(...[...document.querySelectorAll('.life-frame')].map((bar) => Number(bar.getAttribute('width')))) < 250"
WIDTH = 1000


def train(folder, *options):
    return subprocess.Popen([RECVPOOL, "run", "--mode", "enforce", "--report-dir", folder, "--interval", "0.5", "--", TRAINER, "--stages",
                             "4", "--microbatches", "16", "--message-bytes", "2MiB", "--steps", "100000", *options], env=simulated(),
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def is_sharing(folder):
    names = [name for name in os.listdir(folder) if name.endswith(".json")]
    reports = []
    for name in names:
        with open(os.path.join(folder, name)) as file:
            reports.append(json.load(file))
    return len(reports) == 4 and all(any(device["active"] for device in report["enforcement"]["devices"]) for report in reports)


def wait_for(condition, what):
    deadline = time.monotonic() + support.TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"it never came to that: {what}")
        time.sleep(0.2)


def take(page, selector, name):
    """The element, as it is on the page."""
    box = page.evaluate(f"(() => {{ const r = document.querySelector('{selector}').getBoundingClientRect();"
                        " return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height}; })()")
    path = os.path.join(PICTURES, name)
    with open(path, "wb") as file:
        file.write(base64.b64decode(page.send("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                                              clip={**box, "scale": 1})["data"]))
    print(f"{path}: {os.path.getsize(path) >> 10} KiB")


def main():
    os.makedirs(PICTURES, exist_ok=True)
    page = browser.Browser()
    with tempfile.TemporaryDirectory() as folder:
        job = train(folder)
        server = subprocess.Popen([RECVPOOL, "serve", "--listen", "127.0.0.1:0", "--report-dir", folder], stdout=subprocess.PIPE, text=True,
                                  env=clean_environment())
        try:
            wait_for(lambda: is_sharing(folder), "every rank shares")
            page.window(WIDTH, 900)
            page.open(server.stdout.readline().split(" at ")[1].strip())
            page.until(IS_DRAWN)
            take(page, "#jobs", "job.png")
            page.until(IS_EVEN, support.TIMEOUT_SECONDS)
            take(page, "#timeline-section", "slots.png")
        finally:
            for process in (job, server):
                process.terminate()
                process.wait()
            page.close()


if __name__ == "__main__":
    main()
