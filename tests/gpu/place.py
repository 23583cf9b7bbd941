"""Where the programs and libraries are: of a build folder or of a carried build, on a real or on the simulated device."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Where drivers and toolkits put what the loader may not know of.
DRIVER_FOLDERS = ["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"]
OUTPUT_KEPT = 4000  # characters of a failed command


class Done:
    """A command that ended, or was ended after its time."""

    def __init__(self, command, status, stdout, stderr, late):
        self.command, self.status, self.stdout, self.stderr, self.late = command, status, stdout, stderr, late

    def why(self):
        """In one line."""
        last = (self.stderr.strip().splitlines() or self.stdout.strip().splitlines() or ["no output"])[-1]
        how = "took too long and was ended" if self.late else f"ended with status {self.status}"
        return f"{os.path.basename(self.command[0])} {how}: {last[:300]}"


def run(command, environment, seconds):
    """Runs a command with all it starts in a group of its own, which is ended when its time is up."""
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="backslashreplace", start_new_session=True)
    late = False
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        end_group(process)
        try:
            stdout, stderr = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # something left the group and holds the pipes
            stdout, stderr = "", ""
    return Done(command, process.returncode, stdout, stderr, late)


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def first_with(folders, name):
    return next((folder for folder in folders if os.path.exists(os.path.join(folder, name))), None)


class Place:
    """`build`: a build folder, or None for the carried build that these files lie in. `python`: the one that has torch."""

    def __init__(self, build, simlib, python):
        self.simulated, self.simlib, self.python = simlib is not None, simlib, python
        if build:
            self.recvpool = os.path.join(build, "agent", "recvpool")
            self.agent = os.path.join(build, "agent", "librecvpool.so")
            folders = [os.path.join(build, "tests", name) for name in ("trainer", "bench", "gpu")]
        else:
            self.recvpool = os.path.join(ROOT, "bin", "recvpool")
            self.agent = os.path.join(ROOT, "lib", "librecvpool.so")
            folders = [os.path.join(ROOT, "libexec")]
        if simlib:  # stand-ins for the kernels that nvcc compiled are no part of a carried build
            folders.append(os.path.join(os.path.dirname(simlib), "tests", "trainer"))
        self.folders = folders
        self.schema = os.path.join(ROOT, "dashboards", "schema")
        self.library_folders = [simlib] if simlib else self.find_libraries()
        self.seed = 0

    def program(self, name):
        """Path of a program or module, None where this build has none."""
        folder = first_with(self.folders, name)
        return os.path.join(folder, name) if folder else None

    def find_libraries(self):
        """Folders that the loader has to be told of, for CUDA's runtime, CUPTI, NCCL and the driver. Those of Python's wheels
        first: torch's own, and all of one release."""
        wheels = sorted(glob.glob(os.path.join(self.purelib(), "nvidia", "*", "lib"))) if self.purelib() else []
        toolkits = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
        folders = wheels + [os.path.join(root, inner) for root in toolkits if root
                            for inner in ("lib64", "extras/CUPTI/lib64", "targets/x86_64-linux/lib")]
        found = [first_with(folders, name) for name in ("libcudart.so.13", "libnccl.so.2", "libcupti.so.13")]
        found.append(self.driver_folder())
        return list(dict.fromkeys(folder for folder in found if folder))

    def driver_folder(self):
        """Where the driver is, if the loader does not know."""
        return None if self.loader_knows("libcuda.so.1") else first_with(DRIVER_FOLDERS, "libcuda.so.1")

    def driver_path(self):
        """LD_LIBRARY_PATH for a program that finds all but the driver by itself; None: it needs none."""
        return ":".join(filter(None, [self.driver_folder(), os.environ.get("LD_LIBRARY_PATH")])) or None

    def purelib(self):
        """The folder of packages of the Python with torch."""
        if not hasattr(self, "purelib_found"):
            ask = [self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
            try:
                self.purelib_found = run(ask, dict(os.environ), 20).stdout.strip()
            except OSError:
                self.purelib_found = ""
        return self.purelib_found

    def loader_knows(self, name):
        tool = shutil.which("ldconfig", path="/sbin:/usr/sbin:" + os.environ.get("PATH", ""))
        cache = run([tool, "-p"], dict(os.environ), 20).stdout if tool else ""
        return name in cache or first_with(os.environ.get("LD_LIBRARY_PATH", "").split(":"), name) is not None

    def environment(self, **extra):
        """For a program that uses the device. Nothing of ours is inherited; None removes a name."""
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("RECVPOOL_", "RPSIM_", "CUDA_INJECTION", "NCCL_PROFILER"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            kept.pop(name, None)
        path = self.library_folders + [kept[name] for name in ("LD_LIBRARY_PATH",) if kept.get(name)]
        kept["LD_LIBRARY_PATH"] = ":".join(path)
        kept["PYTHONDONTWRITEBYTECODE"] = "1"
        if self.simulated:
            self.seed += 1
            kept["RPSIM_SEED"] = str(self.seed)
        for name, value in extra.items():
            if value is None:
                kept.pop(name, None)
            else:
                kept[name] = str(value)
        return kept

    def trainer(self, static=False):
        """Command line that a rank of the trainer begins with, and what has to be preloaded: the build for CUDA, on the
        simulated device too; where there is none, as without a toolkit, the one for the simulated device."""
        path = self.program("rp_trainer_cuda_static" if static else "rp_trainer_cuda")
        if not self.simulated or static:
            return path, None
        bodies = self.program("librpsim_trainer_kernels.so")
        if path and bodies:
            return path, bodies
        return self.program("rp_trainer"), None


def read_reports(folder):
    """Reports of a folder, by rank."""
    reports = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path) as file:
            report = json.load(file)
        reports[report["process"]["rank"]] = report
    return reports


def describe(place):
    """What the report says of this machine."""
    told = {"kernel": os.uname().release, "processors": os.cpu_count(), "libraries": place.library_folders,
            "python": sys.version.split()[0], "recvpool": None, "device": None, "device_bytes": None, "driver": None,
            "runtime": None, "nccl": None, "cupti": None, "kernel_module": None, "compute_capability": None, "torch": None}
    done = run([place.recvpool, "--version"], place.environment(), 20)
    match = re.search(r"\d+\.\d+\.\d+", done.stdout)
    told["recvpool"] = match[0] if match else None
    try:
        with open("/proc/driver/nvidia/version") as file:
            match = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", file.read())
            told["kernel_module"] = match and match[0]
    except OSError:
        pass
    return told
