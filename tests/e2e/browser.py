"""A real Chromium, driven over the DevTools protocol by a pipe: no port, no other package."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

# Most machines take a second; a busy one with two cores and sanitizers takes many.
ANSWER_SECONDS = 120


def find():
    """Path of a Chromium, or None."""
    for name in (os.environ.get("E2E_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        path = name and shutil.which(name)
        if path:
            return path
    return None


class Browser:
    """One headless browser with one page. What the page says, asks and breaks is kept in `complaints` and `requests`."""

    def __init__(self, extra=()):
        self.profile = tempfile.mkdtemp(prefix="recvpool-browser-")
        self.complaints, self.requests, self.buffer, self.number = [], [], b"", 0
        to_browser, self.writer = os.pipe()
        self.reader, from_browser = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (to_browser, from_browser)]

        def hand_over():  # the protocol's ends are 3 and 4
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        # The sandbox does not work for root, nor in many containers; only pages of this test are opened.
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile}", "--no-first-run", "--disable-background-networking", "--disable-sync",
             "--disable-component-update", "--disable-extensions", "--disable-dev-shm-usage", "--mute-audio", *extra,
             "about:blank"],
            pass_fds=(3, 4), preexec_fn=hand_over, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        for end in (to_browser, from_browser, *high):
            os.close(end)
        self.session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self):
        for end in (self.writer, self.reader):
            os.close(end)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    # ---- protocol

    def receive(self, seconds):
        """The next message, or None when there is none in time."""
        deadline = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reader], [], [], left)[0]:
                return None
            part = os.read(self.reader, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def note(self, message):
        name, given = message.get("method"), message.get("params", {})
        if name == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif name == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in given["args"]))
        elif name == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif name == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")

    def send(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self.receive(deadline - time.monotonic())
            if answer is None:
                raise RuntimeError(f"{method}: no answer")
            if answer.get("id") != message["id"]:
                self.note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    # ---- a person's view

    def window(self, width=1280, height=900, dark=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme",
                                                           "value": "dark" if dark else "light"}])

    def open(self, url):
        self.complaints, self.requests = [], []
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def evaluate(self, script):
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return answer["result"].get("value")

    def until(self, condition, seconds=60):
        """Waits until the script is true; returns its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.evaluate(condition)
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"never true: {condition}; the page says {self.evaluate('document.body.innerText')!r}")

    def key(self, name, **modifiers):
        code = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}[name]
        text = {"Enter": "\r", " ": " "}.get(name)
        given = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": code, **modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown", **given, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **given)

    def picture(self, path, whole=True):
        """A PNG of the page, or of what the window shows."""
        options = {}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            options = {"captureBeyondViewport": True,
                       "clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}}
        data = self.send("Page.captureScreenshot", format="png", **options)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
