#include "formats/dcp/unpickle.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "formats/little_endian.h"

namespace shardinit::dcp {
namespace {

using Kind = Value::Kind;

// Twice as many values as Llama 405B has on 512 ranks with a chunk for each tensor and rank. They
// take 3 GB of memory.
constexpr size_t kMostValues = size_t{1} << 25;

// Runs the stack machine and the opcodes that `pickletools` describes.
class Machine {
 public:
  Machine(std::string_view in, const std::string& path)
      : in_(in), all_(in.size()), path_(path), joined_left_(in.size()), members_left_(in.size()) {}

  Pickle Run() {
    while (true) {
      const char opcode = Take(1)[0];
      if (opcode == '.') break;
      Step(opcode);
    }
    pickle_.root = Pop();
    pickle_.bytes = all_ - in_.size();
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void Refuse(std::string_view what) const {
    throw Error(ExitCode::kRefused,
                fmt::format("`{}` is not a pickle of a checkpoint: {}", Escape(path_), what));
  }

  std::string_view Take(uint64_t bytes) {
    if (bytes > in_.size()) Refuse("it ends too early");
    const std::string_view taken = in_.substr(0, static_cast<size_t>(bytes));
    in_.remove_prefix(static_cast<size_t>(bytes));
    return taken;
  }
  uint64_t Natural(size_t bytes) { return FromLittleEndian(Take(bytes)); }
  std::string Line() {
    const size_t end = in_.find('\n');
    if (end == in_.npos) Refuse("a line has no end");
    std::string line(Take(end));
    Take(1);
    return line;
  }

  Value* Push(Kind kind) {
    if (pickle_.values.size() == kMostValues) {
      Refuse(fmt::format("it has more than {} values", kMostValues));
    }
    stack_.push_back(&pickle_.values.emplace_back(Value{.kind = kind}));
    return stack_.back();
  }
  void PushInt(int64_t number) { Push(Kind::kInt)->number = number; }
  void PushText(std::string_view text) { Push(Kind::kText)->text = text; }
  Value* Pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
      Refuse("it uses more values than it has created");
    Value* const top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<Value*> PopItems(size_t count) {
    std::vector<Value*> items(count);
    for (size_t i = count; i-- > 0;) items[i] = Pop();
    return items;
  }
  std::vector<Value*> PopToMark() {
    if (marks_.empty()) Refuse("it uses more values than it has created");
    std::vector<Value*> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                              stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void PushItems(Kind kind, std::vector<Value*> items) { Push(kind)->items = std::move(items); }
  // Adds items to the container on top of the stack.
  void Add(Kind kind, std::vector<Value*> items) {
    Value* const to = Pop();
    stack_.push_back(to);
    if (to->kind == Kind::kNone) return;  // Items of a set are dropped.
    if (to->kind == Kind::kObject) {
      to->held.insert(to->held.end(), items.begin(), items.end());
      return;
    }
    if (to->kind != kind || (kind == Kind::kDict && items.size() % 2 != 0)) {
      Refuse("it adds items to a value that is not a container");
    }
    to->items.insert(to->items.end(), items.begin(), items.end());
  }
  void Memorize(uint64_t number) {
    Value* const top = Pop();
    stack_.push_back(top);
    memo_[number] = top;
  }
  void PushMemoized(uint64_t number) {
    const auto known = memo_.find(number);
    if (known == memo_.end()) Refuse("it loads a value that it has not stored");
    stack_.push_back(known->second);
  }

  void SkipBytes(uint64_t bytes) {
    Take(bytes);
    Push(Kind::kNone);
  }
  void RequireProtocol(uint64_t version) const {
    if (version < 2 || version > 5)
      Refuse(fmt::format("it has protocol {}, but only 2 to 5 are read", version));
  }
  // Keeps a number of more than 64 bits as text, to distinguish it from others.
  void PushLong(std::string_view bytes) {
    if (bytes.size() > sizeof(int64_t)) {
      Push(Kind::kNone)->text = bytes;
      return;
    }
    int64_t value = !bytes.empty() && static_cast<int8_t>(bytes.back()) < 0 ? -1 : 0;
    memcpy(&value, bytes.data(), bytes.size());
    PushInt(value);
  }
  // Reads a line of protocol 1: `01` and `00` are bools, and a number of Python 2 may end in `L`.
  void PushLine() {
    const std::string line = Line();
    if (line == "01" || line == "00") {
      Push(Kind::kBool)->number = line == "01";
      return;
    }
    const std::string_view digits = std::string_view(line).substr(0, line.find('L'));
    const std::optional<int64_t> number = ParseNumber<int64_t>(digits);
    number ? PushInt(*number) : PushText(digits);
    if (!number) stack_.back()->kind = Kind::kNone;
  }
  void PushGlobal() {
    const std::string module = Line();
    Push(Kind::kGlobal)->text = module + "." + Line();
  }
  void JoinGlobal() {
    const std::vector<Value*> names = PopItems(2);
    if (names[0]->kind != Kind::kText || names[1]->kind != Kind::kText)
      Refuse("a name is not text");
    // A pickle can recall both names any number of times with few bytes.
    const size_t length = names[0]->text.size() + names[1]->text.size();
    if (length > joined_left_) Refuse("its names are longer than the file");
    joined_left_ -= length;
    Push(Kind::kGlobal)->text = names[0]->text + "." + names[1]->text;
  }
  // Returns the members of an OrderedDict that is made from nothing, a dictionary or pairs.
  static std::optional<std::vector<Value*>> MembersOf(const Value& arguments) {
    if (arguments.items.empty()) return std::vector<Value*>();
    if (arguments.items.size() > 1) return std::nullopt;
    const Value& of = *arguments.items[0];
    if (of.kind == Kind::kDict) return of.items;
    if (of.kind != Kind::kList && of.kind != Kind::kTuple) return std::nullopt;
    std::vector<Value*> members;
    for (const Value* pair : of.items) {
      const bool is_pair = pair->kind == Kind::kList || pair->kind == Kind::kTuple;
      if (!is_pair || pair->items.size() != 2) return std::nullopt;
      members.insert(members.end(), pair->items.begin(), pair->items.end());
    }
    return members;
  }
  // Treats an OrderedDict and a defaultdict as dictionaries.
  void Call() {
    std::vector<Value*> items = PopItems(2);
    std::optional<std::vector<Value*>> members;
    if (items[0]->kind == Kind::kGlobal && items[1]->kind == Kind::kTuple) {
      if (items[0]->text == "collections.OrderedDict") members = MembersOf(*items[1]);
      const bool is_default = items[0]->text == "collections.defaultdict";
      if (is_default && items[1]->items.size() <= 1) members.emplace();
    }
    if (!members) return PushItems(Kind::kObject, std::move(items));
    // A few bytes can refer to the same list again and again, as in the limit above.
    if (members->size() > members_left_) Refuse("its dictionaries are larger than the file");
    members_left_ -= members->size();
    PushItems(Kind::kDict, *std::move(members));
  }
  // Calls with keyword arguments, which are stored last in the object's `held`.
  void CallWithKeywords() {
    Value* const keywords = Pop();
    Call();
    stack_.back()->held.push_back(keywords);
  }
  void Build() {
    Value* const state = Pop();
    Value* const object = Pop();
    if (object->kind == Kind::kDict) {  // `_metadata` of a state_dict
      stack_.push_back(object);
      return;
    }
    if (object->kind != Kind::kObject) Refuse("it sets the state of a value that is not an object");
    object->items.push_back(state);
    stack_.push_back(object);
  }

  struct Operation {
    char opcode;
    size_t bytes;  // the size of the operand
    void (*run)(Machine& machine, uint64_t number);
  };

  static const Operation* Find(char opcode) {
    static constexpr auto kNone = [](Machine& m, uint64_t) { m.Push(Kind::kNone); };
    static constexpr auto kSkipBytes = [](Machine& m, uint64_t n) { m.SkipBytes(n); };
    static constexpr auto kInt = [](Machine& m, uint64_t n) { m.PushInt(static_cast<int64_t>(n)); };
    static constexpr auto kText = [](Machine& m, uint64_t n) { m.PushText(m.Take(n)); };
    static constexpr auto kObject = [](Machine& m, uint64_t) { m.Call(); };
    static constexpr auto kMemorize = [](Machine& m, uint64_t n) { m.Memorize(n); };
    static constexpr auto kRecall = [](Machine& m, uint64_t n) { m.PushMemoized(n); };
    static constexpr Operation kOperations[] = {
        {'\x80', 1, [](Machine& m, uint64_t n) { m.RequireProtocol(n); }},  // PROTO
        {'\x95', 8, [](Machine&, uint64_t) {}},                             // FRAME
        {'N', 0, kNone},
        {'\x8f', 0, kNone},                                      // EMPTY_SET
        {'G', 0, [](Machine& m, uint64_t) { m.SkipBytes(8); }},  // BINFLOAT
        {'C', 1, kSkipBytes},                                    // SHORT_BINBYTES
        {'B', 4, kSkipBytes},                                    // BINBYTES
        {'\x8e', 8, kSkipBytes},                                 // BINBYTES8
        {'\x96', 8, kSkipBytes},                                 // BYTEARRAY8
        {'\x88', 0, [](Machine& m, uint64_t) { m.Push(Kind::kBool)->number = 1; }},
        {'\x89', 0, [](Machine& m, uint64_t) { m.Push(Kind::kBool)->number = 0; }},
        {'K', 1, kInt},
        {'M', 2, kInt},
        {'J', 4,
         [](Machine& m, uint64_t n) { m.PushInt(static_cast<int32_t>(static_cast<uint32_t>(n))); }},
        {'\x8a', 1, [](Machine& m, uint64_t n) { m.PushLong(m.Take(n)); }},  // LONG1
        {'\x8b', 4, [](Machine& m, uint64_t n) { m.PushLong(m.Take(n)); }},  // LONG4
        {'I', 0, [](Machine& m, uint64_t) { m.PushLine(); }},
        {'L', 0, [](Machine& m, uint64_t) { m.PushLine(); }},
        {'X', 4, kText},
        {'T', 4, kText},     // BINSTRING: keys of Python 2
        {'U', 1, kText},     // SHORT_BINSTRING
        {'\x8c', 1, kText},  // SHORT_BINUNICODE
        {'\x8d', 8, kText},  // BINUNICODE8
        {'c', 0, [](Machine& m, uint64_t) { m.PushGlobal(); }},
        {'\x93', 0, [](Machine& m, uint64_t) { m.JoinGlobal(); }},  // STACK_GLOBAL
        {'(', 0, [](Machine& m, uint64_t) { m.marks_.push_back(m.stack_.size()); }},
        {')', 0, [](Machine& m, uint64_t) { m.Push(Kind::kTuple); }},
        {'\x85', 0, [](Machine& m, uint64_t) { m.PushItems(Kind::kTuple, m.PopItems(1)); }},
        {'\x86', 0, [](Machine& m, uint64_t) { m.PushItems(Kind::kTuple, m.PopItems(2)); }},
        {'\x87', 0, [](Machine& m, uint64_t) { m.PushItems(Kind::kTuple, m.PopItems(3)); }},
        {'t', 0, [](Machine& m, uint64_t) { m.PushItems(Kind::kTuple, m.PopToMark()); }},
        {']', 0, [](Machine& m, uint64_t) { m.Push(Kind::kList); }},
        {'a', 0, [](Machine& m, uint64_t) { m.Add(Kind::kList, m.PopItems(1)); }},
        {'e', 0, [](Machine& m, uint64_t) { m.Add(Kind::kList, m.PopToMark()); }},
        {'\x90', 0, [](Machine& m, uint64_t) { m.PopToMark(); }},  // ADDITEMS
        {'\x91', 0,
         [](Machine& m, uint64_t) {
           m.PopToMark();
           m.Push(Kind::kNone);
         }},  // FROZENSET
        {'}', 0, [](Machine& m, uint64_t) { m.Push(Kind::kDict); }},
        {'s', 0, [](Machine& m, uint64_t) { m.Add(Kind::kDict, m.PopItems(2)); }},
        {'u', 0, [](Machine& m, uint64_t) { m.Add(Kind::kDict, m.PopToMark()); }},
        {'R', 0, kObject},                                                // REDUCE
        {'\x81', 0, kObject},                                             // NEWOBJ
        {'\x92', 0, [](Machine& m, uint64_t) { m.CallWithKeywords(); }},  // NEWOBJ_EX
        {'b', 0, [](Machine& m, uint64_t) { m.Build(); }},
        {'Q', 0, [](Machine& m, uint64_t) { m.PushItems(Kind::kPersistent, m.PopItems(1)); }},
        {'q', 1, kMemorize},
        {'r', 4, kMemorize},
        {'\x94', 0, [](Machine& m, uint64_t) { m.Memorize(m.memo_.size()); }},  // MEMOIZE
        {'h', 1, kRecall},
        {'j', 4, kRecall},
        {'0', 0, [](Machine& m, uint64_t) { m.Pop(); }},
        {'1', 0, [](Machine& m, uint64_t) { m.PopToMark(); }},
    };
    for (const Operation& row : kOperations) {
      if (row.opcode == opcode) return &row;
    }
    return nullptr;
  }

  void Step(char opcode) {
    const Operation* const operation = Find(opcode);
    if (operation == nullptr) Refuse(fmt::format("opcode 0x{:02x}", static_cast<uint8_t>(opcode)));
    operation->run(*this, Natural(operation->bytes));
  }

  std::string_view in_;
  const size_t all_;
  const std::string& path_;
  Pickle pickle_;
  std::vector<Value*> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  size_t joined_left_;         // bytes left for joined names
  size_t members_left_;        // keys and values left for dictionaries
  std::unordered_map<uint64_t, Value*> memo_;
};

}  // namespace

const Value* Value::At(size_t index) const {
  const bool has_items = kind == Kind::kTuple || kind == Kind::kList || kind == Kind::kObject ||
                         kind == Kind::kPersistent;
  return has_items && index < items.size() ? items[index] : nullptr;
}

const Value* Value::Find(std::string_view key) const {
  if (kind != Kind::kDict) return nullptr;
  for (size_t i = items.size(); i > 1; i -= 2) {
    if (items[i - 2]->IsText(key)) return items[i - 1];
  }
  return nullptr;
}

std::string_view Value::Maker() const {
  const Value* const maker = kind == Kind::kObject ? At(0) : nullptr;
  return maker != nullptr && maker->kind == Kind::kGlobal ? maker->text : std::string_view();
}

const Value* Value::State() const {
  return kind == Kind::kObject && items.size() > 2 ? items.back() : nullptr;
}

Pickle ReadPickle(std::string_view bytes, const std::string& path) {
  return Machine(bytes, path).Run();
}

}  // namespace shardinit::dcp
