#include "formats/dcp/unpickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"

namespace shardinit::dcp {
namespace {

using Kind = Value::Kind;

// Twice as many as Llama 405B has on 512 ranks with a chunk for each tensor and rank; they take 3
// GB of memory.
constexpr size_t kMostValues = size_t{1} << 25;

// Runs the machine that `pickletools` describes, whose opcodes these are.
class Machine {
 public:
  Machine(std::string_view in, const std::string& path)
      : in_(in), path_(path), joined_left_(in.size()) {}

  Pickle Run() {
    while (true) {
      const char opcode = Take(1)[0];
      if (opcode == '.') break;
      Step(opcode);
    }
    pickle_.root = Pop();
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void Refuse(std::string_view what) const {
    throw Error(ExitCode::kRefused,
                fmt::format("`{}` is no pickle of a checkpoint: {}", Escape(path_), what));
  }

  std::string_view Take(uint64_t bytes) {
    if (bytes > in_.size()) Refuse("it ends too early");
    const std::string_view taken = in_.substr(0, static_cast<size_t>(bytes));
    in_.remove_prefix(static_cast<size_t>(bytes));
    return taken;
  }
  uint64_t Natural(size_t bytes) {
    uint64_t value = 0;
    for (const char c : Take(bytes)) {
      value = value >> 8 | uint64_t{static_cast<uint8_t>(c)} << (8 * (bytes - 1));
    }
    return value;
  }
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
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) Refuse("it takes what is not there");
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
    if (marks_.empty()) Refuse("it takes what is not there");
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
    // Items of a set, or of a container of a class of its own, are dropped.
    if (to->kind == Kind::kNone || to->kind == Kind::kObject) return;
    if (to->kind != kind || (kind == Kind::kDict && items.size() % 2 != 0)) {
      Refuse("it adds to what is no container");
    }
    to->items.insert(to->items.end(), items.begin(), items.end());
  }
  void Memorize(uint64_t number) {
    Value* const top = Pop();
    stack_.push_back(top);
    memo_[number] = top;
  }
  void Recall(uint64_t number) {
    const auto known = memo_.find(number);
    if (known == memo_.end()) Refuse("it recalls what it has not said");
    stack_.push_back(known->second);
  }

  void Step(char opcode) {
    switch (opcode) {
      case '\x80':  // PROTO
        if (const uint64_t version = Natural(1); version < 2 || version > 5) {
          Refuse(fmt::format("protocol {}", version));
        }
        return;
      case '\x95':  // FRAME
        Natural(8);
        return;
      case 'N':
      case '\x8f':  // EMPTY_SET
        Push(Kind::kNone);
        return;
      case 'G':  // BINFLOAT
        Take(8);
        Push(Kind::kNone);
        return;
      case 'C':  // SHORT_BINBYTES
        Take(Natural(1));
        Push(Kind::kNone);
        return;
      case 'B':  // BINBYTES
        Take(Natural(4));
        Push(Kind::kNone);
        return;
      case '\x88':
      case '\x89':
        Push(Kind::kBool)->number = opcode == '\x88';
        return;
      case 'K':
        PushInt(static_cast<int64_t>(Natural(1)));
        return;
      case 'M':
        PushInt(static_cast<int64_t>(Natural(2)));
        return;
      case 'J':
        PushInt(static_cast<int32_t>(static_cast<uint32_t>(Natural(4))));
        return;
      case '\x8a': {  // LONG1
        const std::string_view bytes = Take(Natural(1));
        if (bytes.size() > sizeof(int64_t)) Refuse("a number of more than 64 bits");
        int64_t value = !bytes.empty() && static_cast<int8_t>(bytes.back()) < 0 ? -1 : 0;
        memcpy(&value, bytes.data(), bytes.size());
        PushInt(value);
        return;
      }
      case 'X':
        PushText(Take(Natural(4)));
        return;
      case '\x8c':  // SHORT_BINUNICODE
        PushText(Take(Natural(1)));
        return;
      case '\x8d':  // BINUNICODE8
        PushText(Take(Natural(8)));
        return;
      case 'c': {  // GLOBAL
        const std::string module = Line();
        Push(Kind::kGlobal)->text = module + "." + Line();
        return;
      }
      case '\x93': {  // STACK_GLOBAL
        const std::vector<Value*> names = PopItems(2);
        if (names[0]->kind != Kind::kText || names[1]->kind != Kind::kText) Refuse("a name");
        // A pickle may recall both any number of times with few bytes.
        const size_t length = names[0]->text.size() + names[1]->text.size();
        if (length > joined_left_) Refuse("its names are longer than the file");
        joined_left_ -= length;
        Push(Kind::kGlobal)->text = names[0]->text + "." + names[1]->text;
        return;
      }
      case '(':
        marks_.push_back(stack_.size());
        return;
      case ')':
        Push(Kind::kTuple);
        return;
      case '\x85':
      case '\x86':
      case '\x87':
        PushItems(Kind::kTuple, PopItems(static_cast<size_t>(opcode - '\x84')));
        return;
      case 't':
        PushItems(Kind::kTuple, PopToMark());
        return;
      case ']':
        Push(Kind::kList);
        return;
      case 'a':
        Add(Kind::kList, PopItems(1));
        return;
      case 'e':
        Add(Kind::kList, PopToMark());
        return;
      case '\x90':  // ADDITEMS
        PopToMark();
        return;
      case '}':
        Push(Kind::kDict);
        return;
      case 's':
        Add(Kind::kDict, PopItems(2));
        return;
      case 'u':
        Add(Kind::kDict, PopToMark());
        return;
      case 'R':     // REDUCE
      case '\x81':  // NEWOBJ
        PushItems(Kind::kObject, PopItems(2));
        return;
      case 'b': {  // BUILD
        Value* const state = Pop();
        Value* const object = Pop();
        if (object->kind != Kind::kObject) Refuse("a state of what is no object");
        object->items.push_back(state);
        stack_.push_back(object);
        return;
      }
      case 'Q':  // BINPERSID
        PushItems(Kind::kPersistent, PopItems(1));
        return;
      case 'q':
        Memorize(Natural(1));
        return;
      case 'r':
        Memorize(Natural(4));
        return;
      case '\x94':  // MEMOIZE
        Memorize(memo_.size());
        return;
      case 'h':
        Recall(Natural(1));
        return;
      case 'j':
        Recall(Natural(4));
        return;
      case '0':
        Pop();
        return;
      default:
        Refuse(fmt::format("opcode 0x{:02x}", static_cast<uint8_t>(opcode)));
    }
  }

  std::string_view in_;
  const std::string& path_;
  Pickle pickle_;
  std::vector<Value*> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  size_t joined_left_;         // bytes that further names may have
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
