"""A file of C++ includes the headers of the libraries that it names, itself or through ours.

The build with clang compiles each file alone, which finds what is missing of our headers. It reads those of
libraries once for all files (SHARDINIT_PRECOMPILED), and could not find what is missing of them. Compilers'
libraries include one another, each in its own way: this looks at the standard's headers alone."""

import functools
import re

import pytest

from support import ROOT

FOLDERS = [ROOT / "src", ROOT / "tests"]
# The kernels are compiled without precompiled headers, and these as parts of files that include what they need.
PARTS = set((ROOT / "src/kernels").glob("*-inl.h"))
SOURCES = sorted({path for folder in FOLDERS for ending in ("cc", "h") for path in folder.rglob(f"*.{ending}")} - PARTS)

# The header → names in `std` that it declares. A name may have several.
DECLARED = {
    "algorithm": """adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal fill fill_n
        find find_if includes is_sorted lower_bound max max_element min min_element minmax minmax_element mismatch none_of
        nth_element partition_point remove_if replace reverse set_difference shuffle sort stable_sort transform unique upper_bound
        ranges""",
    "array": "array tuple_size_v get",
    "atomic": "atomic atomic_signal_fence memory_order_seq_cst",
    "barrier": "barrier",
    "bit": "bit_cast bit_ceil bit_floor endian popcount",
    "charconv": "errc from_chars to_chars",
    "cfenv": "fegetenv fenv_t fesetenv",
    "chrono": "chrono",
    "cmath": """abs atan2 ceil copysign cos erfc exp fabs floor fma fmaf fmax fmin frexp ilogb isfinite isinf
        isnan isnormal ldexp llround
        log log10 log2 lround nan nanf nearbyint nextafter pow round signbit sin sqrt trunc""",
    "compare": "strong_ordering weak_ordering partial_ordering",
    "concepts": "convertible_to floating_point integral invocable same_as unsigned_integral",
    "condition_variable": "condition_variable",
    "cstddef": "byte max_align_t nullptr_t ptrdiff_t size_t",
    "cstdint": "int64_t uint32_t uint64_t",
    "cstdio": "FILE fflush fread fwrite remove",
    "cstdlib": "abort abs aligned_alloc atoi atoll free getenv malloc rand",
    "cstring": "memchr memcmp memcpy memmove memset strcmp strcpy strlen",
    "ctime": "gmtime strftime time time_t tm",
    "cctype": "isalnum isalpha islower tolower",
    "csignal": "signal",
    "deque": "deque",
    "exception": "current_exception exception exception_ptr rethrow_exception set_terminate terminate_handler",
    "filesystem": "error_code filesystem",
    "forward_list": "forward_list",
    "fstream": "ifstream ios ofstream",
    "functional": """bit_and bit_or bit_xor divides equal_to function greater greater_equal hash invoke less less_equal
        logical_and logical_or minus modulus multiplies not_equal_to plus""",
    "future": "async future future_status launch promise",
    "initializer_list": "initializer_list",
    "ios": "hex ios",
    "iomanip": "setprecision setw",
    "iostream": "cerr cin cout",
    "istream": "istream",
    "iterator": "back_inserter begin end istreambuf_iterator make_move_iterator next prev size ssize",
    "limits": "numeric_limits",
    "list": "list",
    "locale": "locale numpunct",
    "map": "erase_if map multimap",
    "memory": "enable_shared_from_this make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "call_once lock_guard mutex once_flag unique_lock",
    "new": "bad_alloc nothrow",
    "numbers": "numbers",
    "numeric": "accumulate gcd iota lcm partial_sum",
    "optional": "nullopt optional",
    "random": "mt19937 mt19937_64 uniform_int_distribution",
    "ranges": "views",
    "set": "multiset erase_if set",
    "span": "begin end size span ssize",
    "sstream": "hex ios istringstream ostringstream stringstream",
    "stdexcept": "exception invalid_argument logic_error out_of_range runtime_error",
    "streambuf": "streambuf",
    "string": "begin end erase erase_if getline size ssize stod stoi stoll stoul string to_string",
    "string_view": "begin end size ssize string_view",
    "system_error": "errc error_code",
    "thread": "this_thread thread",
    "tuple": "apply get tie tuple tuple_size_v",
    "type_traits": """conditional_t extent_v is_arithmetic_v is_pointer_v is_same_v remove_cvref_t remove_pointer_t type_identity_t""",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "utility": "as_const cmp_equal declval exchange forward get in_range move pair swap",
    "variant": "get get_if holds_alternative monostate variant variant_alternative_t variant_size_v visit",
    "vector": "begin end erase erase_if size ssize vector",
}
HEADERS = {}
for declaring, names in DECLARED.items():
    for declared in names.split():
        HEADERS.setdefault(declared, set()).add(declaring)
# Names of other libraries, and those of C's, as patterns.
OTHERS = {r"fmt::join\b": "fmt/ranges.h", "fmt::": "fmt/format.h", "testing::": "gtest/gtest.h",
          r"u?int(?:8|16|32|64|ptr)_t\b|U?INT(?:8|16|32|64)_M": "cstdint stdint.h", r"errno\b": "cerrno"}


@functools.cache
def text_of(path):
    """A file's text without its comments, and strings but those that it includes."""
    text = re.sub(r'R"(\w*)\(.*?\)\1"', '""', path.read_text(), flags=re.S)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    return "\n".join(line if line.startswith("#include") else re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
                     for line in text.split("\n"))


@functools.cache
def included(path):
    """The headers of libraries that a file includes, itself or through ours; none is of a circle."""
    found = set(re.findall(r"^#include <(.+)>", text_of(path), re.M))
    for name in re.findall(r'^#include "(.+)"', text_of(path), re.M):
        ours = [folder / name for folder in FOLDERS if (folder / name).is_file()]
        assert ours, f"{path} includes {name}"
        found |= included(ours[0])
    return found


@functools.cache
def missing_of(path):
    text, there = text_of(path), included(path)
    used = set(re.findall(r"\bstd::(\w+)", text))
    wanted = {f"std::{name}": HEADERS.get(name, {"?"}) for name in used}
    wanted |= {name: set(headers.split()) for name, headers in OTHERS.items() if re.search(rf"\b{name}", text)}
    return {name: headers for name, headers in wanted.items() if not headers & there}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_is_named_is_included(folder):
    missing = {str(path.relative_to(ROOT)): missing_of(path) for path in SOURCES if folder in path.parents}
    assert {path: names for path, names in missing.items() if names} == {}


def test_what_is_precompiled_is_looked_at():
    """Of other headers the compiler finds what is missing."""
    precompiled = re.findall(r"<([\w/.]+)>", re.search(
        r"set\(precompiled(.*?)\)", (ROOT / "CMakeLists.txt").read_text(), re.S)[1])
    assert len(precompiled) > 20
    assert set(precompiled) <= {*DECLARED, *OTHERS.values()}


def test_what_is_missing_is_found(tmp_path):
    (tmp_path / "a.cc").write_text('#include <vector>\n#include "base/text.h"\n'
                                   'std::vector<int> a;  // std::deque\nconst char* b = "std::list";\n')
    assert missing_of(tmp_path / "a.cc") == {}
    (tmp_path / "b.cc").write_text("#include <vector>\nstd::deque<int> a = std::exchange(b, fmt::join(c));\n")
    assert missing_of(tmp_path / "b.cc") == {
        "std::deque": {"deque"}, "std::exchange": {"utility"}, "fmt::": {"fmt/format.h"}, r"fmt::join\b": {"fmt/ranges.h"}}
