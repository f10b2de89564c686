"""What code reads outside of its arguments: files, the environment, the time, the network.

A fingerprint cannot contain it. The names that code uses show it, by the tables in this module. A table lists too much
rather than too little: a result that is computed again costs time, and an outdated one is wrong.
"""

import contextlib
import io
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.spark_plugin._stages.fingerprints.libraries import is_foreign, is_users
from penstock.spark_plugin._stages.fingerprints.names import Names, Use

# `os.*` has every name of the module, apart from those in `_HARMLESS`.
_COMPUTED = "names that are computed as it runs"
_RANDOM = "random numbers"
_WORLD = {
    "the environment": (
        "os.environ os.environb os.getenv os.getenvb os.getlogin os.getuid os.getpid os.uname os.cpu_count os._Environ "
        "multiprocessing.cpu_count threading.get_ident threading.get_native_id resource.* sysconfig.* site.* gettext.* "
        "getpass.* locale.* platform.* pwd.* grp.* dotenv.* decouple.* environs.* pydantic_settings.*"
    ),
    "the arguments of the program": "sys.argv sys.orig_argv argparse.ArgumentParser optparse.OptionParser",
    "the interpreter": "sys.* gc.*",
    "files": (
        "builtins.open io.open io.open_code io.FileIO io.TextIOWrapper io.BufferedReader io.BufferedWriter "
        "io.BufferedRandom codecs.open os.* os.path.* pathlib.Path.cwd pathlib.Path.home shutil.* tempfile.* glob.* "
        "fileinput.* linecache.* mmap.* dbm.* shelve.* sqlite3.* zipfile.ZipFile zipfile.PyZipFile zipfile.Path "
        "tarfile.* gzip.open gzip.GzipFile bz2.open bz2.BZ2File lzma.open lzma.LZMAFile pickle.load pickle.Unpickler "
        "json.load marshal.load tomllib.load xml.etree.ElementTree.parse xml.etree.ElementTree.iterparse "
        "importlib.resources.* importlib.metadata.* importlib_resources.* importlib_metadata.* pkgutil.* "
        "pkg_resources.* filecmp.* mimetypes.* netrc.* plistlib.load wave.open "
        "inspect.getsource inspect.getsourcelines inspect.stack numpy.fromfile numpy.genfromtxt numpy.loadtxt "
        "numpy.memmap cv2.imread geoip2.database.* maxminddb.* duckdb.* pyarrow.fs.* "
        "pyarrow.memory_map pyarrow.OSFile deltalake.*"
    ),
    "the input of the program": "builtins.input sys.stdin",
    "the time": (
        "time.* datetime.datetime.now datetime.datetime.today datetime.datetime.utcnow datetime.date.today "
        "email.utils.formatdate email.utils.localtime email.utils.make_msgid"
    ),
    _RANDOM: "random.* numpy.random.* secrets.* uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7 uuid.getnode",
    "the network": (
        "socket.* socketserver.* ssl.* select.* selectors.* urllib.request.* http.client.* http.server.* ftplib.* "
        "smtplib.* imaplib.* poplib.* xmlrpc.* asyncio.open_connection asyncio.open_unix_connection requests.* httpx.* "
        "httplib2.* aiohttp.* urllib3.* websocket.* websockets.* boto3.* botocore.* aioboto3.* aiobotocore.* "
        "google.cloud.* azure.* paramiko.* grpc.* kafka.* confluent_kafka.* pika.* redis.* pymongo.* psycopg.* "
        "psycopg2.* pymysql.* MySQLdb.* mysql.* asyncpg.* pyodbc.* oracledb.* cx_Oracle.* sqlalchemy.* cassandra.* "
        "elasticsearch.* opensearchpy.* snowflake.* clickhouse_connect.* clickhouse_driver.* fsspec.* s3fs.* gcsfs.* "
        "adlfs.* smart_open.* mlflow.* wandb.* openai.* anthropic.* hvac.*"
    ),
    "other programs": "subprocess.* asyncio.create_subprocess_exec asyncio.create_subprocess_shell pty.* pexpect.*",
    "code outside of Python": "ctypes.* cffi.*",
    _COMPUTED: (
        "builtins.globals builtins.eval builtins.exec builtins.compile builtins.__import__ importlib.import_module "
        "importlib.reload importlib.util.* importlib.machinery.* runpy.*"
    ),
}


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


# They give the same numbers in each run if they are called with a seed, and so does what follows `seed(7)`.
_GENERATORS = _words(
    "random.Random numpy.random.default_rng numpy.random.RandomState numpy.random.SeedSequence numpy.random.PCG64 "
    "numpy.random.PCG64DXSM numpy.random.MT19937 numpy.random.Philox numpy.random.SFC64"
)
_SEEDS = _words("random.seed numpy.random.seed")
# Parts of the modules above that are the same in each run, or that rows are not computed with.
_HARMLESS = (
    _words(
        "os.path os.sep os.pathsep os.altsep os.extsep os.linesep os.curdir os.pardir os.devnull os.name os.fspath",
        "os.fsencode os.fsdecode os.PathLike os.strerror os.error os.path.join os.path.basename os.path.dirname",
        "os.path.split os.path.splitext os.path.splitdrive os.path.splitroot os.path.normpath os.path.normcase",
        "os.path.isabs os.path.commonpath os.path.commonprefix os.path.sep os.path.pathsep os.path.altsep",
        "sys.stdout sys.stderr sys.__stdout__ sys.__stderr__ sys.maxsize sys.maxunicode sys.byteorder sys.float_info",
        "sys.int_info sys.hash_info sys.exc_info sys.exception sys.intern sys.getsizeof sys.exit sys.getrecursionlimit",
        "sys.setrecursionlimit sys.version sys.version_info sys.hexversion sys.implementation sys.platform gc.collect",
        # How long something takes says nothing in another process.
        "time.sleep time.perf_counter time.perf_counter_ns time.monotonic time.monotonic_ns time.process_time",
        "time.process_time_ns time.thread_time time.thread_time_ns time.strptime time.struct_time",
        "numpy.random.Generator numpy.random.BitGenerator socket.inet_aton socket.inet_ntoa socket.inet_pton",
        "socket.inet_ntop socket.htons socket.htonl socket.ntohs socket.ntohl socket.AF_INET socket.AF_INET6",
        "glob.escape glob.translate yaml.load yaml.load_all",
    )
    | _GENERATORS
    | _SEEDS
)
# Methods of objects that are seldom made where they are used, by the module that has to be reached, too.
_PATHS = _words(
    "read_text read_bytes open exists stat lstat is_file is_dir is_symlink is_mount iterdir glob rglob walk resolve "
    "absolute expanduser samefile readlink owner cwd home"
)
_METHODS = {
    "pathlib": ("files", _PATHS),
    "configparser": ("files", frozenset({"read"})),
    "argparse": ("the arguments of the program", frozenset({"parse_args", "parse_known_args"})),
    "datetime": ("the time", frozenset({"now", "today", "utcnow"})),
    "": ("files", frozenset({"load_model", "from_pretrained"})),
}
# What libraries call the functions that read something.
_READS = re.compile(r"(?:load|read|open|scan|fetch)(?:_.*)?|connect|from_pretrained|now|utcnow|today")
_ALIASES = {
    "posix": "os",
    "nt": "os",
    "posixpath": "os.path",
    "ntpath": "os.path",
    "genericpath": "os.path",
    "_io": "io",
    "_pickle": "pickle",
    "_socket": "socket",
    "_datetime": "datetime",
    "_random": "random",
    "numpy.random.mtrand": "numpy.random",
    "numpy.random.bit_generator": "numpy.random",
    "pathlib._local": "pathlib",
}
_EXACT = {name: topic for topic, names in _WORLD.items() for name in names.split() if not name.endswith(".*")}
_MODULES = {
    name.removesuffix(".*"): topic for topic, names in _WORLD.items() for name in names.split() if name.endswith(".*")
}
# Escaping from its name, each of them could be asked for whatever it has.
_HOLDERS = frozenset({*_MODULES, *(name.rpartition(".")[0] for name in _EXACT)} - {"builtins"})
_IMPORTERS = ("importlib.import_module", "builtins.__import__")
_BUILTIN = frozenset(name for name in _EXACT if name.startswith("builtins."))
_MISSING = object()


@dataclass(slots=True, eq=False)
class Part:
    """What was found in a value; how it is reached decides whether that matters."""

    found: dict[tuple[str, str], str] = field(default_factory=dict)
    """The first place of each topic and name."""
    names: set[str] = field(default_factory=set)
    reached: set[str] = field(default_factory=set)
    methods: dict[str, str] = field(default_factory=dict)
    takes_any: bool = False
    parts: list[tuple[str, "Part"]] = field(default_factory=list)
    """What it has, with the name that code has to use for it; without a name where it is used in any case."""


class World:
    """Collects what a function and all that it names read outside."""

    def __init__(self) -> None:
        self._root = self._part = Part()
        self._known: dict[int, Part] = {}
        self._unknown: list[str] = []
        self.place = ""
        """Where the function is that is looked at: `'clean' (job.py:12)`."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is read, as text."""
        pending, active = [self._root], {id(self._root): self._root}
        waiting: list[tuple[str, Part]] = []
        names: set[str] = set()
        takes_any = False
        while pending:
            for part in pending:
                waiting += part.parts
                names |= part.names
                takes_any = takes_any or part.takes_any
            pending, kept = [], waiting
            waiting = []
            for name, part in kept:
                if name and name not in names and not takes_any:
                    waiting.append((name, part))
                elif id(part) not in active:
                    active[id(part)] = part
                    pending.append(part)
        found: dict[tuple[str, str], str] = {}
        for part in active.values():
            found = part.found | found
        reached = {"", *(name for part in active.values() for name in part.reached)}
        for module, (topic, methods) in _METHODS.items():
            for part in active.values() if module in reached else ():
                called = {(topic, f".{name}"): place for name, place in part.methods.items() if name in methods}
                found = called | found
        shown = (f"{topic} ({name}), in {place}" for (topic, name), place in found.items())
        return (*self._unknown, *shown)

    @contextlib.contextmanager
    def inside(self, value: object, name: str = "") -> Iterator[None]:
        """Look into a value, which counts if the part that is looked at counts, and if code uses the name."""
        part = Part()
        self._part.parts.append((name, part))
        self._known[id(value)] = part
        before, self._part = self._part, part
        try:
            yield
        finally:
            self._part = before

    @contextlib.contextmanager
    def aside(self) -> Iterator[Part]:
        """Look into what counts only if it is met again, or added."""
        before, self._part = self._part, Part()
        try:
            yield self._part
        finally:
            self._part = before

    def again(self, value: object) -> None:
        """Note that a value was met that was looked into before."""
        if id(value) in self._known:
            self.add(self._known[id(value)])

    def add(self, part: Part) -> None:
        """Count what was looked into `aside`."""
        self._part.parts.append(("", part))

    def meet(self, value: object) -> str | None:
        """Look at a function, class or object of a library; the name by which it reads something outside, if any."""
        if isinstance(value, io.IOBase) and not isinstance(value, io.StringIO | io.BytesIO):
            return self._report("an open file", "files")
        for name in _names_of(value):
            top = name.partition(".")[0]
            self._part.reached.add(top)
            self._part.takes_any = self._part.takes_any or name in ("operator.attrgetter", "operator.methodcaller")
            topic = self._topic(name)
            if topic is None and isinstance(value, types.FunctionType) and top in _METHODS:
                topic = _METHODS[top][0] if value.__name__ in _METHODS[top][1] else None
            if topic:
                return self._report(name, topic)
        return None

    def hand_over(self, module: types.ModuleType) -> None:
        """Look at a module that is used as a value, which other code may ask for whatever the module has."""
        name = _canonical(module)
        if self._is_open(module, name):
            self._report(f"the module {name}, as a value", _COMPUTED)

    def missing(self, name: str) -> None:
        """Report a module that code imports and that this process cannot import."""
        self._report(name, "a module that the driver cannot import")

    def unknown(self, reason: str) -> None:
        """Report what cannot be compared, whichever part it is in."""
        self._unknown.append(reason)

    def read(self, function: types.FunctionType, names: Names, cells: Mapping[str, object]) -> None:
        """Look at the names that a function uses.

        Args:
            function: Whose code it is.
            names: What its code names.
            cells: What its free variables hold.
        """
        before, found, seeded = self.place, list[tuple[str, str, str]](), False
        self._part.names |= names.all
        self._part.takes_any = names.takes_any
        for dotted in sorted({one for bound in names.bound.values() for one in bound}):
            self._part.reached.add(dotted.partition(".")[0])
            topic = self._topic(dotted)
            if topic and dotted not in _MODULES:
                found.append((dotted, topic, self.place))
        for use in names.uses:
            self.place = place_of(function, use.line)
            if (use.attributes or (use.name,))[-1] in ("import_module", "__import__") and use.constant in _HOLDERS:
                # The module has no name in the code: any attribute may be one of it.
                taken = ((name, self._topic(f"{use.constant}.{name}")) for name in sorted(names.all))
                found += [(f"{use.constant}.{name}", topic, self.place) for name, topic in taken if topic]
            for dotted, topic in self._follow(use, names, function.__globals__, cells):
                if dotted in _SEEDS and not use.is_called_bare:
                    seeded = True
                else:
                    found.append((dotted, topic, self.place))
        for dotted, topic, self.place in found:
            if not seeded or topic != _RANDOM:
                self._report(dotted, topic)
        self.place = before

    def _topic(self, name: str) -> str | None:
        """What a name reads, as text: `os.environ` reads the environment. None if it reads nothing outside."""
        parts = name.split(".")
        is_standard = parts[0] in sys.stdlib_module_names
        if not is_standard and not is_foreign(parts[0]):
            return None  # the user's code is followed
        if name in _EXACT:
            return _EXACT[name]
        if name in _HARMLESS:
            return None
        for end in range(len(parts) - 1, 0, -1):
            if ".".join(parts[:end]) in _HARMLESS - _MODULES.keys():
                return None
            # What is private has another name as well.
            if (topic := _MODULES.get(".".join(parts[:end]))) and not any(one.startswith("_") for one in parts[end:-1]):
                return topic
        if is_standard or not _READS.fullmatch(parts[-1]):
            return None
        return "the time" if parts[-1] in _METHODS["datetime"][1] else "files"

    def _report(self, name: str, topic: str) -> str:
        shown = name.removeprefix("builtins.").replace("os._Environ", "os.environ")
        self._part.found.setdefault((topic, shown), self.place)
        return name

    def _follow(
        self, use: Use, names: Names, scope: Mapping[str, object], cells: Mapping[str, object]
    ) -> Iterator[tuple[str, str]]:
        """What a use of a name reads: the name with its module, and the topic."""
        starts: list[tuple[str, object]] = []
        if use.name in names.bound:
            starts += [_start(dotted) for dotted in sorted(names.bound[use.name])]
        elif use.name in names.stored_globals:
            pass  # it depends on what has run by now
        elif use.is_global and use.name in scope:
            starts.append(("", scope[use.name]))
        elif use.is_global and use.name:
            starts.append((f"builtins.{use.name}", None))
        elif use.name in cells:
            starts.append(("", cells[use.name]))
        if not starts:
            self._keep_methods(use.attributes)
        for dotted, value in starts:
            yield from self._walk(use, dotted, value)

    def _walk(self, use: Use, dotted: str, value: object) -> Iterator[tuple[str, str]]:
        for index, attribute in enumerate(("", *use.attributes)):
            holder = value
            if isinstance(holder, types.ModuleType | type):
                dotted = _canonical(holder)
                self._part.reached.add(dotted.partition(".")[0])
            elif index and holder is not _MISSING:
                self._keep_methods(use.attributes[index - 1 :])
                return
            if index:
                dotted = f"{dotted}.{attribute}"
                known = vars(holder) if isinstance(holder, types.ModuleType) else {}
                value = known.get(attribute, sys.modules.get(dotted, _MISSING))
            if dotted in _SEEDS or (dotted in _GENERATORS and use.is_called_bare):
                yield dotted, _RANDOM
                return
            if (index or dotted in _BUILTIN) and (topic := self._topic(dotted)):
                if dotted not in _IMPORTERS or use.constant is None:
                    yield dotted, topic
                return
            if index and isinstance(holder, type):
                self._keep_methods(use.attributes[index - 1 :])
        if self._is_open(value, dotted):
            yield f"the module {dotted}, as a value", _COMPUTED

    def _is_open(self, value: object, dotted: str) -> bool:
        """Whether a value is a module that would have to be followed to where it is asked for a name."""
        if value is _MISSING:
            return dotted in _HOLDERS
        return isinstance(value, types.ModuleType) and (dotted in _HOLDERS or is_users(value))

    def _keep_methods(self, names: Iterable[str]) -> None:
        for name in names:
            self._part.methods.setdefault(name, self.place)


def place_of(function: types.FunctionType, line: int | None = None) -> str:
    """Name, file and line of a function, for people."""
    name = function.__qualname__.rpartition("<locals>.")[2]
    return f"{name!r} ({Path(function.__code__.co_filename).name}:{line or function.__code__.co_firstlineno})"


def _start(dotted: str) -> tuple[str, object]:
    """What an import gives a name to, if the module was imported: libraries are not imported to look at code."""
    module = sys.modules.get(dotted)
    if module is not None:
        return dotted, module
    package, _, name = dotted.rpartition(".")
    return dotted, vars(sys.modules[package]).get(name, _MISSING) if package in sys.modules else _MISSING


def _canonical(value: types.ModuleType | type) -> str:
    """The name of a module or class, by which the tables have it."""
    module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    module = _ALIASES.get(module, module)
    return module if isinstance(value, types.ModuleType) else f"{module}.{value.__qualname__}"


def _names_of(value: object) -> Iterator[str]:
    """Names of a function, a class or an object: objects go by their class."""
    for name in _EXACT:
        module, _, attribute = name.rpartition(".")
        if module in sys.modules and vars(sys.modules[module]).get(attribute) is value:
            yield name
    if isinstance(value, types.ModuleType | type):
        yield _canonical(value)
    else:
        called = str(getattr(value, "__name__", ""))
        for module in _MODULES if called else ():
            if module in sys.modules and vars(sys.modules[module]).get(called) is value:
                yield f"{module}.{called}"
        owner = getattr(value, "__self__", None)
        if isinstance(owner, type):
            yield f"{_canonical(owner)}.{called}"
        elif isinstance(value, types.BuiltinFunctionType | types.FunctionType):
            if isinstance(value.__module__, str):
                yield f"{_ALIASES.get(value.__module__, value.__module__)}.{value.__qualname__}"
        else:
            yield _canonical(type(value))
