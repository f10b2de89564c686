"""What a function reads outside of the pipeline is in no fingerprint: the names in its code show it."""

import functools
import importlib
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # as everybody writes it
from pyspark.sql.types import StringType

from penstock.spark_plugin._stages.fingerprints import libraries
from penstock.spark_plugin._stages.fingerprints.code import Looked, is_unique, look_at

Write = Callable[..., types.ModuleType]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module of the user and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Two edits within a second would have one time in a cached file.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names: set[str] = set()

    def write(text: str, name: str = "user_job", folder: Path = tmp_path) -> types.ModuleType:
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
        names.add(name)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


def what(looked: Looked) -> list[str]:
    """What the reasons name: `os.environ` of `the environment (os.environ), in 'clean' (job.py:12)`."""
    return [reason.partition("(")[2].partition(")")[0] for reason in looked.world]


def blocks(text: str) -> list[Any]:
    """Pieces of code, each with the line above it."""
    pieces = [piece.removeprefix("# ").partition("\n") for piece in text.strip().split("\n\n")]
    return [pytest.param(name, piece, id=f"{index} {name}") for index, (name, _, piece) in enumerate(pieces)]


READS = blocks("""
# os.environ
import os
def clean(x): return os.environ['STEP']

# os.environ
import os
def clean(x): return os.environ.get('STEP')

# os.getenv
import os
def clean(x): return os.getenv('STEP')

# os.environ
from os import environ
def clean(x): return environ['STEP']

# os.environ
from os import environ as e
def clean(x): return e['STEP']

# os.getenv
from os import getenv
def clean(x): return getenv('STEP')

# os.environ
def clean(x):
    import os
    return os.environ['STEP']

# os.environ
def clean(x):
    import os as system
    return system.environ['STEP']

# os.environ
def clean(x):
    from os import environ
    return environ['STEP']

# os.environ
def clean(x):
    import os
    return [os.environ[y] for y in x]

# os.environ
def clean(x):
    import os
    def inner(y): return lambda: os.environ[y]
    return inner(x)

# os.environ
def clean(x):
    global os
    import os
    return os.environ['STEP']

# os.environ
import os
base = os
def clean(x): return base.environ

# the module os, as a value
import os
def clean(x):
    base = os
    return base.environ

# the module os, as a value
import os
def clean(x, base=os): return base.environ

# the module os, as a value
import os
class Box:
    base = os
def clean(x): return Box.base.environ

# os.environ
import os
def clean(x): return getattr(os, 'environ')

# the module os, as a value
import os
def clean(x): return getattr(os, x)

# the module os, as a value
import os
def clean(x): return vars(os)[x]

# os.environ
import os
def make(base): return lambda x: base.environ
clean = make(os)

# os.environ
import os
def make(base): return lambda x: base['STEP']
clean = make(os.environ)

# os.environ
import os
class Box:
    def __init__(self): self.base = os.environ
BOX = Box()
def clean(x): return BOX.base

# os.path.exists
import os.path
def clean(x): return os.path.exists(x)

# os.path.getmtime
from os import path
def clean(x): return path.getmtime(x)

# os.path.exists
from os.path import exists
def clean(x): return exists(x)

# os.listdir
import os
def clean(x): return os.listdir(x)

# sys.argv
import sys
def clean(x): return sys.argv[1]

# open
def clean(x): return open(x).read()

# open
read = open
def clean(x): return read(x).read()

# open
import functools
read = functools.partial(open, mode='rb')
def clean(x): return read(x).read()

# io.open
import io
def clean(x): return io.open(x).read()

# input
def clean(x): return input()

# globals
STEP = 1
def clean(x): return globals()['STEP']

# eval
def clean(x): return eval('x')

# .read_text
from pathlib import Path
def clean(x): return Path('rates.json').read_text()

# .open
import pathlib
def clean(x):
    file = pathlib.Path('rates.json')
    return file.open().read()

# .read_bytes
from pathlib import Path
RATES = Path('rates.json')
def clean(x): return RATES.read_bytes()

# pathlib.Path.read_text
from pathlib import Path
read = Path('rates.json').read_text
def clean(x): return read()

# .exists
from pathlib import Path
def clean(x): return helper(Path(x))
def helper(y): return y.exists()

# .read_text
from pathlib import Path
class Config:
    FILE = Path('rates.json')
def clean(x): return Config.FILE.read_text()

# os.environ
import dataclasses, os
@dataclasses.dataclass
class Row:
    step: str = dataclasses.field(default_factory=lambda: os.environ['STEP'])
def clean(x): return Row()

# os.environ
import operator, os
class Rate:
    def of(self): return os.environ
get = operator.methodcaller('of')
def clean(x): return get(Rate())

# os.environ
import functools, os
class Rate:
    def of(self, name): return os.environ[name]
    step = functools.partialmethod(of, 'STEP')
def clean(x): return Rate().step()

# os.environ
import json, os
class Rates(json.JSONEncoder):
    def hook(self, x): return os.environ[x]
def clean(x): return json.dumps(x, cls=Rates)

# pathlib.Path.cwd
from pathlib import Path
def clean(x): return Path.cwd()

# pickle.load
import pickle
def clean(x): return pickle.load(x)

# no_joblib
def clean(x):
    import no_joblib
    return no_joblib.load('model.bin').predict(x)

# numpy.load
import numpy as np
def clean(x): return np.load('rates.npy')

# pandas.read_csv
import pandas as pd
def clean(x): return pd.read_csv('rates.csv')

# pandas.io.parsers.readers.read_csv
from pandas import read_csv
def clean(x): return read_csv('rates.csv')

# pandas.read_parquet
def clean(x):
    import pandas as pd
    return pd.read_parquet('rates')

# time.time
import time
def clean(x): return time.time()

# time.time
from time import time
def clean(x): return time()

# datetime.datetime.now
from datetime import datetime
def clean(x): return datetime.now()

# datetime.datetime.now
import datetime as dt
def clean(x): return dt.datetime.now(dt.timezone.utc)

# datetime.date.today
import datetime as dt
def clean(x): return dt.date.today()

# datetime.datetime.utcnow
def clean(x):
    from datetime import datetime
    return datetime.utcnow()

# datetime.datetime.now
from datetime import datetime
now = datetime.now
def clean(x): return now()

# .today
from datetime import date
def helper(kind): return kind.today()
def clean(x): return helper(date)

# random.random
import random
def clean(x): return random.random()

# random.choice
from random import choice
def clean(x): return choice(x)

# random.Random
import random
def clean(x): return random.Random().random()

# random.Random
from random import Random
def clean(x): return Random().random()

# numpy.random.rand
import numpy as np
def clean(x): return np.random.rand()

# numpy.random.default_rng
import numpy as np
def clean(x): return np.random.default_rng().random()

# numpy.random.rand
from numpy.random import rand
def clean(x): return rand()

# secrets.token_hex
import secrets
def clean(x): return secrets.token_hex()

# uuid.uuid4
import uuid
def clean(x): return uuid.uuid4()

# socket.gethostname
import socket
def clean(x): return socket.gethostname()

# urllib.request.urlopen
import urllib.request
def clean(x): return urllib.request.urlopen(x)

# requests.get
import requests
def clean(x): return requests.get(x).text

# requests.sessions.Session
import requests
SESSION = requests.Session()
def clean(x): return SESSION.get(x)

# boto3.client
import boto3
def clean(x): return boto3.client('s3')

# subprocess.check_output
import subprocess
def clean(x): return subprocess.check_output(x)

# os.popen
import os
def clean(x): return os.popen(x).read()

# getpass.getuser
import getpass
def clean(x): return getpass.getuser()

# platform.node
import platform
def clean(x): return platform.node()

# importlib.import_module
import importlib
def clean(x): return importlib.import_module(x).rate

# importlib.import_module
from importlib import import_module
def clean(x): return import_module(x).rate

# os.environ
import importlib
def clean(x): return importlib.import_module('os').environ

# __import__
def clean(x): return __import__(x).rate

# importlib.resources.files
from importlib import resources
def clean(x): return resources.files('rates')

# pkgutil.get_data
import pkgutil
def clean(x): return pkgutil.get_data('rates', 'rates.json')

# .read
import configparser
def clean(x):
    c = configparser.ConfigParser()
    c.read('job.ini')

# .load_model
def clean(x): return load_model('m')
class Model: pass
def load_model(name): return Model().load_model(name)

# there_is_no_such_module
def clean(x):
    import there_is_no_such_module as t
    return t.rate(x)

# the module user_job, as a value
import user_job
import sys
def clean(x): return getattr(user_job, x)

# os.environ
import os
def helper(x): return os.environ[x]
def clean(x): return helper(x)

# os.environ
import os
class Rate:
    def of(self, x): return os.environ[x]
def clean(x): return Rate().of(x)

# os.environ
import os
class Rate:
    @staticmethod
    def of(x): return os.environ[x]
def clean(x): return Rate.of(x)

# os.environ
import os
class Rate:
    @property
    def step(self): return os.environ['STEP']
r = Rate()
def clean(x): return r.step

# os.environ
import os
class Rate:
    def __call__(self, x): return os.environ[x]
rate = Rate()
def clean(x): return rate(x)

# os.environ
import os
class Rate:
    def of(self, x): return os.environ[x]
r = Rate()
def clean(x): return getattr(r, x)()

# os.environ
import os, json
class Rates(json.JSONEncoder):
    def default(self, x): return os.environ[x]
def clean(x): return json.dumps(x, cls=Rates)

# os.environ
import functools, os
@functools.cache
def rates(): return os.environ
def clean(x): return rates()

# os.environ
import os
STEPS = {'a': [lambda: os.environ['A']]}
def clean(x): return STEPS[x][0]()

# os.environ
import functools, os
def logged(f):
    @functools.wraps(f)
    def g(*a): return f(os.environ, *a)
    return g
@logged
def clean(e, x): return e[x]

# open
MODEL = None
def clean(x):
    global MODEL
    if MODEL is None:
        import pickle
        with open('model.pkl', 'rb') as file: MODEL = pickle.load(file)
    return MODEL

# ctypes.CDLL
import ctypes
def clean(x): return ctypes.CDLL('libm.so.6')

# an open file
file = open(__file__)
def clean(x): return file.read()
""")


@pytest.mark.parametrize(("expected", "text"), READS)
def test_read_of_the_world_has_a_reason(write: Write, expected: str, text: str) -> None:
    """The fingerprint stays the same: with `pure=True` it is used."""
    module = write(text)
    looked = look_at(module.clean)
    assert expected in what(looked)
    assert len(what(looked)) == len(set(what(looked)))
    assert not is_unique(looked.fingerprint)
    assert look_at(module.clean).fingerprint == looked.fingerprint


PURE = blocks("""
# paths
import os
from pathlib import Path
def clean(x): return os.path.join(x, 'a'), Path(x).stem, Path(x) / 'b'

# names like modules
def clean(x): return x.environ, x.stat, x.time(), x.random, x.exists()

# words like modules
import os, time
def clean(x): return os.sep.join([x.environ, x.stat]), x.time(), x.listdir

# logging
import logging
log = logging.getLogger('job')
def clean(x):
    log.info('row %s', x)
    logging.getLogger(__name__).debug('x')
    return x

# print
import sys
def clean(x):
    print(x, file=sys.stderr)
    return x

# attributes of a module that are set
import sys
import user_job as job
def clean(x):
    sys.stdout = sys.stderr
    job.STEP = x
    return x

# stderr
from sys import stderr
def clean(x):
    print(x, file=stderr)
    return x

# timing
import time
def clean(x):
    start = time.perf_counter()
    return x, time.perf_counter() - start

# dates
from datetime import datetime, date, timedelta, timezone
def clean(x): return datetime.strptime(x, '%Y'), date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=timezone.utc)

# a seed
import random
def clean(x): return random.Random(7).random(), random.Random(x).choice('ab')

# a seed of numpy
import numpy as np
def clean(x):
    np.random.seed(7)
    return np.random.rand()

# a generator of numpy
import numpy as np
def clean(x): return np.random.default_rng(seed=7).random()

# a seeded generator
import random
rng = random.Random(7)
def clean(x): return rng.random()

# seeded generators of numpy
import numpy as np
new, old = np.random.default_rng(7), np.random.RandomState(7)
def clean(x): return new.random(), old.rand(), np.random.RandomState(x).rand()

# regular expressions
import re
word = re.compile('a+')
def clean(x): return word.match(x).group(), re.sub('a', '', x)

# data classes
import dataclasses
@dataclasses.dataclass
class Row:
    x: int = 0
    def of(self): return self.x
def clean(x): return dataclasses.replace(Row(x), x=1).of()

# enumerations
import enum
class Kind(enum.Enum):
    A = 1
def clean(x): return Kind(x).name

# named tuples
import collections
Row = collections.namedtuple('Row', 'x y')
def clean(x): return Row(x, 1).x

# json
import json
def clean(x): return json.loads(x), json.dumps(x)

# decimals
from decimal import Decimal
def clean(x): return Decimal(x).quantize(Decimal('0.01'))

# hashes
import hashlib, uuid
def clean(x): return hashlib.sha256(x).hexdigest(), uuid.uuid5(uuid.NAMESPACE_DNS, x)

# collections
import collections, itertools
def clean(x): return collections.Counter(x), list(itertools.chain(x))

# pandas
import pandas as pd, numpy as np
def clean(x): return pd.to_datetime(x), np.where(x > 1, x, 0), pd.concat([x])

# addresses
import ipaddress, urllib.parse
def clean(x): return ipaddress.ip_address(x), urllib.parse.urlparse(x)

# buffers
import io
def clean(x): return io.StringIO(x).read(), io.BytesIO(b'').read()

# values of the environment
import os
STEP = os.environ.get('STEP', '1')
def clean(x): return x + STEP

# arguments of the program, by their values
from sys import argv
def clean(x): return len(argv)

# arguments that were parsed
import argparse
ARGS = argparse.ArgumentParser().parse_args([])
def clean(x): return ARGS, x

# helpers that are not called
import os
def other(x): return os.environ[x]
def clean(x): return x
class Rate:
    @classmethod
    def load(cls, file): return open(file).read()
    def of(self, x): return x
RATE = Rate()
def clean(x): return RATE.of(x)

# methods that are not called
import enum, os, typing
class Kind(enum.Enum):
    A = 1
    def shown(self): return os.environ['KIND']
class Row(typing.NamedTuple):
    x: int
    def saved(self): return open(self.x)
class Rates(dict):
    def load(self): return open('rates')
def clean(x): return Kind.A.value, Row(x).x, Rates(a=x)['a']

# imports that are not used
import os, sys, time, random, requests
from os import environ
def clean(x): return x

# annotations
import os, requests, socket, random
from pathlib import Path
def clean(x: os.DirEntry, y: requests.Session = None) -> Path:
    def inner(a: socket.socket, *b: requests.Session, c: random.Random) -> os._Environ: return a
    z: requests.Session
    return inner

# annotations of a class
import dataclasses, io, requests
@dataclasses.dataclass
class Row:
    session: requests.Session | None = None
    file: io.TextIOWrapper | None = None
    x: int = 0
def clean(x): return Row(x=x).x

# modules by a constant name
import importlib
def clean(x): return importlib.import_module('json').dumps(x)

# attributes by a constant name
import math
def clean(x): return getattr(math, 'sqrt')(x), getattr(x, 'y', None)

# caches
import functools
@functools.lru_cache(8)
def rate(x): return x * 2
def clean(x): return rate(x)

# partials
import functools
def scale(f, x): return f * x
clean = functools.partial(scale, 2)

# a counter
calls = 0
def clean(x):
    global calls
    calls += 1
    return x

# generators of rows
def clean(rows):
    for row in rows:
        yield row.x + 1

# contexts
import contextlib
@contextlib.contextmanager
def held(): yield 1
def clean(x):
    with held() as y: return y
""")


@pytest.mark.parametrize(("what_it_is", "text"), PURE)
def test_ordinary_code_reads_nothing(write: Write, what_it_is: str, text: str) -> None:
    """No stage is computed again for a name alone."""
    looked = look_at(write(text).clean)
    assert looked.world == ()
    assert not is_unique(looked.fingerprint)


def test_module_of_the_user_is_not_taken_for_a_librarys(write: Write) -> None:
    """A helper may be named as a library that is not installed."""
    write("def load_rates(x): return x", "hvac")
    assert look_at(write("import hvac\ndef clean(x): return hvac.load_rates(x)").clean).world == ()
    assert look_at(write("def clean(x):\n    from hvac import load_rates\n    return load_rates(x)").clean).world == ()


def test_reason_says_what_is_read_and_where(write: Write) -> None:
    """Once, by the first line of the code that reads it."""
    module = write(
        "import os\n\ndef helper(x):\n\n    os.environ[x]\n    return os.environ[x]\ndef clean(x): return helper(x)\n"
    )
    assert look_at(module.clean).world == ("the environment (os.environ), in 'helper' (user_job.py:5)",)


def test_driver_function_reads_what_its_udf_reads(write: Write) -> None:
    """A function that names a UDF runs its code."""
    module = write("import os\ndef clean(x): return os.environ[x]\n")
    udf = F.udf(module.clean, StringType())
    assert what(look_at(lambda frame: frame.select(udf("x")))) == ["os.environ"]


def test_part_that_is_met_first_where_it_is_not_used_counts(write: Write) -> None:
    """A helper of a method that no code calls, which another function calls."""
    module = write(
        """
        import os
        def helper(x): return os.environ[x]
        class Rate:
            def load(self, x): return helper(x)
            def of(self, x): return x
        def clean(x): return Rate().of(x), helper(x)
        def other(x): return Rate().of(x)
        """
    )
    assert what(look_at(module.clean)) == ["os.environ"]
    assert what(look_at(module.other)) == []


def test_modules_by_constant_names_are_followed(write: Write) -> None:
    """As an import statement."""
    for call in ("importlib.import_module('user_rates').rate(x)", "__import__('user_rates').rate(x)"):
        job = write(f"import importlib\ndef clean(x): return {call}\n")

        def of(text: str, job: types.ModuleType = job) -> Looked:
            write(text, "user_rates")
            return look_at(job.clean)

        assert of("def rate(x): return 1") == of("def rate(x): return 1")
        assert of("def rate(x): return 1").fingerprint != of("def rate(x): return 2").fingerprint
        assert "os.environ" in what(of("import os\ndef rate(x): return os.environ[x]"))


def test_value_of_a_module_counts_by_a_constant_name(write: Write) -> None:
    """As the attribute does."""
    rates = write("STEP = 1", "user_rates")
    job = write("import user_rates\ndef clean(x): return getattr(user_rates, 'STEP')")
    before = look_at(job.clean)
    vars(rates)["STEP"] = 2
    assert look_at(job.clean).fingerprint != before.fingerprint


@pytest.mark.parametrize("text", ["def rate(x): return {0}", "STEP = {0}\ndef rate(x): return STEP"])
def test_file_in_site_packages_without_distribution_is_the_users(write: Write, tmp_path: Path, text: str) -> None:
    """A script copied it there, and copies the next version to the same place."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    sys.path.insert(0, str(folder))
    try:
        write(text.format(0), "copied_rates", folder)
        job = write(
            "import copied_rates\ndef clean(x): return copied_rates.rate(x)\ndef other(x):\n"
            "    from copied_rates import rate\n    return rate(x)\n"
        )
        found = []
        for step in (1, 1, 2):
            vars(job)["copied_rates"] = write(text.format(step), "copied_rates", folder)
            found.append((look_at(job.clean), look_at(job.other)))
        assert found[0] == found[1]
        assert found[0][0] != found[2][0]
        assert found[0][1] != found[2][1]
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize("editable", [True, False])
def test_distribution_counts_by_its_version_unless_it_is_edited(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editable: bool
) -> None:
    """Wherever it is installed; an editable one has the same version while its files change."""
    info = tmp_path / "user_rates-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: user-rates\nVersion: 1.0\n")
    (info / "RECORD").write_text("user_rates.py,,\n")
    if editable:
        (info / "direct_url.json").write_text('{"url": "file:///rates", "dir_info": {"editable": true}}')
    # Distributions are looked for once in a process.
    for name in ("_packages", "_distributions_of"):
        monkeypatch.setattr(libraries, name, functools.cache(getattr(libraries, name).__wrapped__))
    job = write("def clean(x):\n    import user_rates\n    return user_rates.rate(x)\n")
    found = []
    for step in (1, 1, 2):
        write(f"import os\ndef rate(x): return os.environ, {step}", "user_rates")
        found.append(look_at(job.clean))
    assert found[0] == found[1]
    assert (found[1].fingerprint != found[2].fingerprint) == editable
    assert bool(found[0].world) == editable


def test_wrapper_of_a_library_is_not_the_users(write: Write) -> None:
    """What a decorator of a library does is its own; what it wraps counts."""
    text = """
        import contextlib, os
        @contextlib.contextmanager
        def held(): yield {}
        def clean(x):
            with held() as y: return y
        """
    assert what(look_at(write(text.format("os.environ")).clean)) == ["os.environ"]
    one, other = (look_at(write(text.format(number)).clean) for number in (1, 2))
    assert one.fingerprint != other.fingerprint


def test_wrapper_of_the_user_around_a_librarys_function_counts(write: Write) -> None:
    """`functools.wraps` gives it the name and module of the library."""
    text = """
        import functools, json
        def logged(f):
            @functools.wraps(f)
            def g(x): return f(x) + {}
            return g
        dumps = logged(json.dumps)
        def clean(x): return dumps(x)
        """
    one, other = (look_at(write(text.format(repr(word))).clean) for word in "ab")
    assert one.fingerprint != other.fingerprint


def test_first_look_at_what_a_function_sets_is_the_same_later(write: Write) -> None:
    """Also by what it reads: the function is set to another by its first call."""
    module = write(
        """
        import os
        def first(): return os.environ
        step = first
        def clean(x):
            global step
            step = step() and None
        """
    )
    before = look_at(module.clean)
    assert what(before) == ["os.environ"]
    module.clean(1)
    assert look_at(module.clean) == before


def test_object_that_cannot_be_pickled_has_a_reason(write: Write) -> None:
    """And does not hide the others."""
    module = write("import os\nrows = (row for row in 'ab')\ndef clean(x): return next(rows), os.environ\n")
    looked: Any = look_at(module.clean)
    assert is_unique(looked.fingerprint)
    assert looked.world == (
        "an object of builtins.generator, which cannot be compared",
        "the environment (os.environ), in 'clean' (user_job.py:3)",
    )
