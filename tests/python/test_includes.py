"""Each C++ file includes the headers of all names that it uses, directly or through our headers.

Builds compile the files of a folder together, so they would not notice a missing include. Standard libraries include
one another, each in its own way, so this test checks only the standard's headers."""

import functools
import re

import pytest

from support import ROOT

FOLDERS = [ROOT / "src", ROOT / "tests"]
# Parts that other files include; they are not checked separately.
PARTS = set((ROOT / "src/kernels").glob("*-inl.h"))
SOURCES = sorted({path for folder in FOLDERS for ending in ("cc", "h") for path in folder.rglob(f"*.{ending}")} - PARTS)

# header → the names in `std` that it declares; several headers may declare a name
DECLARED = {
    "algorithm": """adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal fill fill_n
        find find_if includes inplace_merge is_sorted lower_bound max max_element min min_element minmax
        minmax_element mismatch none_of nth_element partition_point ranges remove_if replace reverse
        set_difference shuffle sort stable_sort transform unique upper_bound""",
    "array": "array tuple_size_v get",
    "atomic": "atomic atomic_signal_fence memory_order_acq_rel memory_order_acquire memory_order_relaxed "
              "memory_order_seq_cst",
    "barrier": "barrier",
    "bit": "bit_cast bit_ceil bit_floor endian popcount rotl",
    "charconv": "errc from_chars to_chars",
    "cfenv": "fegetenv fenv_t fesetenv",
    "chrono": "chrono",
    "cmath": """abs atan2 ceil copysign cos erfc exp fabs floor fma fmaf fmax fmin fmod frexp ilogb isfinite isinf
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
    "ctime": "clock clock_t gmtime strftime time time_t tm",
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
    "iterator": "advance back_inserter begin end istreambuf_iterator make_move_iterator next prev size ssize",
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
# Patterns for names of other libraries and of C.
OTHERS = {r"fmt::join\b": "fmt/ranges.h", "fmt::": "fmt/format.h", "testing::": "gtest/gtest.h",
          r"u?int(?:8|16|32|64|ptr)_t\b|U?INT(?:8|16|32|64)_M": "cstdint stdint.h", r"errno\b": "cerrno"}


@functools.cache
def code_text(path):
    """Returns the text of a file without comments and without strings, except in `#include`."""
    text = re.sub(r'R"(\w*)\(.*?\)\1"', '""', path.read_text(), flags=re.S)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    return "\n".join(line if line.startswith("#include") else re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
                     for line in text.split("\n"))


@functools.cache
def our_includes(path):
    """Returns our headers that a file includes directly."""
    names = re.findall(r'^#include "(.+)"', code_text(path), re.M)
    found = {name: [folder / name for folder in FOLDERS if (folder / name).is_file()] for name in names}
    assert all(found.values()), f"{path} includes {found}"
    return {paths[0] for paths in found.values()}


def transitive_includes(headers):
    """Returns these headers of ours and all headers that they include; includes are never circular."""
    return set(headers).union(*(transitive_includes(our_includes(header)) for header in headers))


def included(path):
    """Returns the library headers that a file includes, directly or through our headers."""
    return {name for file in {path} | transitive_includes(our_includes(path))
            for name in re.findall(r"^#include <(.+)>", code_text(file), re.M)}


# Names for other files are declared at the beginning of a line. Members, enumerators and forward declarations may be
# anywhere.
OUTER = re.compile(r"""^(?:template\s*<[^{};]*>\s*)?(?:
    (?:struct|class|union|enum(?:\s+class)?)\s+(\w+)(?:\s+final)?\s*(?::[^;{]*)?\{
    | using\s+(\w+)\s*=
    | (?:(?:inline|constexpr|extern|const)\s+)+[\w:<>,&*\s]*?[\s&*](k[A-Z]\w*)\b
    | (?:(?:inline|constexpr|extern|\[\[\w+\]\])\s+)*[A-Za-z_][\w:<>,&*\s]*?[\s&*]([A-Z]\w*)\( )""", re.X | re.M)
ANY = re.compile(r"""(?:\b(?:struct|class|union|enum(?:\s+class)?|using|concept|typename(?:\.\.\.)?)\s+(\w+)
    | (?<!\breturn)(?<!\bthrow)(?<!\belse)(?<!\bcase)(?<=[\w>&*\]])\s+[&*]*([A-Z]\w*)\(
    | \b(k[A-Z]\w*)\b\s*[\[=,}{;] | \b([A-Z]\w*)\s*[;={}] )""", re.X)
TESTS = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|INSTANTIATE_\w+)\(\s*\w+,\s*\w+", re.M)


@functools.cache
def declared_names(path, pattern):
    return {name for names in pattern.findall(TESTS.sub("", code_text(path))) for name in names if name}


@functools.cache
def our_names():
    """Maps each name that our headers declare for other files to those headers."""
    declaring = {}
    for path in SOURCES:
        for name in declared_names(path, OUTER) if path.suffix == ".h" else ():
            declaring.setdefault(name, set()).add(path)
    return declaring


def our_names_missing(path, but=None):
    """Returns our names that a file uses but none of its headers declares, ignoring the header `but`."""
    text = re.sub(r"\bshardinit::", "", TESTS.sub("", code_text(path)))
    there = {path} | transitive_includes(our_includes(path) - {but})
    names = set(re.findall(r"(?<![.>:\w])\w+", text)) & our_names().keys()
    return {name for name in names if not our_names()[name] & there and not any(
        name in declared_names(file, pattern) for file in there for pattern in (OUTER, ANY))}


@functools.cache
def missing_headers(path):
    text, there = code_text(path), included(path)
    used = set(re.findall(r"\bstd::(\w+)", text))
    wanted = {f"std::{name}": HEADERS.get(name, {"?"}) for name in used}
    wanted |= {name: set(headers.split()) for name, headers in OTHERS.items() if re.search(rf"\b{name}", text)}
    return {name: headers for name, headers in wanted.items() if not headers & there}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_used_library_names_are_included(folder):
    missing = {str(path.relative_to(ROOT)): missing_headers(path) for path in SOURCES if folder in path.parents}
    assert {path: names for path, names in missing.items() if names} == {}


def test_files_include_the_headers_of_our_names_they_use():
    missing = {str(path.relative_to(ROOT)): our_names_missing(path) for path in SOURCES}
    assert {path: names for path, names in missing.items() if names} == {}


def test_check_finds_missing_includes_of_our_headers():
    """Leaving out one include is noticed for more than two thirds of all our includes; compilers need few of the
    others."""
    left_out = [(path, header) for path in SOURCES for header in our_includes(path)]
    found = sum(bool(our_names_missing(*one)) for one in left_out)
    assert len(left_out) > 1500 and found > len(left_out) * 2 / 3, (found, len(left_out))


def test_missing_library_includes_are_found(tmp_path):
    (tmp_path / "a.cc").write_text('#include <vector>\n#include "base/text.h"\n'
                                   'std::vector<int> a;  // std::deque\nconst char* b = "std::list";\n')
    assert missing_headers(tmp_path / "a.cc") == {}
    (tmp_path / "b.cc").write_text("#include <vector>\nstd::deque<int> a = std::exchange(b, fmt::join(c));\n")
    assert missing_headers(tmp_path / "b.cc") == {
        "std::deque": {"deque"}, "std::exchange": {"utility"}, "fmt::": {"fmt/format.h"},
        r"fmt::join\b": {"fmt/ranges.h"}}
