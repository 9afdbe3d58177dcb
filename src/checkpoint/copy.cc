// Implements FolderCopy. The file is long because the way one box is read decides how the other
// boxes of its file are read.
#include "checkpoint/copy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/table.h"
#include "generate/fill.h"
#include "generate/view.h"
#include "graph/stored/rearrange.h"
#include "tensor/arrangement.h"

namespace shardinit {
namespace {

// The maximum number of files that are copied in one pass. All are open at once, with their
// metadata.
constexpr int64_t kFilesTogether = 64;

Error Damaged(const std::string& folder, const std::string& what) {
  return Error(ExitCode::kDifferent, fmt::format("`{}` is damaged: {}", folder, what),
               fmt::format("`shardinit verify {}` shows all damage", folder));
}

// A run shorter than a cell is read with its surroundings, because cells are compared as a whole.
constexpr int64_t kSmallestCell = 4 << 10, kLargestCell = 64 << 10;

int64_t CellBytes(int64_t run_bytes) {
  return std::clamp(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(run_bytes))),
                    kSmallestCell, kLargestCell);
}

// Returns the indices, in the whole tensor, of a box's first element and the one after its last.
std::pair<int64_t, int64_t> ReachOf(const Box& box, const Shape& shape) {
  int64_t first = 0, last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    first = first * shape[d] + box.offset[d];
    last = last * shape[d] + box.offset[d] + box.shape[d] - 1;
  }
  return {first, last + 1};
}

// Returns the cell size, at least `least`, for a model with tensors of `bytes` bytes. All
// fingerprints together, 16 bytes each, should take at most 64 MiB.
int64_t CellOfAll(int64_t least, int64_t bytes) {
  int64_t cell = least;
  while (cell < kLargestPrint && bytes / cell > 1 << 22) cell *= 2;
  return cell;
}

// Returns whether adjacent elements of the view are not adjacent in its source.
bool Transposes(const View& view) {
  return std::any_of(view.pieces.begin(), view.pieces.end(), [](const Piece& piece) {
    return !piece.loops.empty() && piece.loops.back().from != 1;
  });
}

struct BoxRuns {
  int64_t shortest;           // of elements that are adjacent both in the box and in its source
  std::set<int64_t> sources;  // numbers of the tensors that the box has elements of
};

// Finds the runs in a box of a view.
BoxRuns RunsIn(const Tensor& tensor, const Box& box) {
  PieceBudget budget = std::numeric_limits<PieceBudget>::max();
  BoxRuns found = {ElementCount(box.shape), {}};
  for (const Piece& piece : BoxOf({tensor.shape(), tensor.view()->pieces}, box, &budget).pieces) {
    if (piece.source == Piece::kPadding) continue;
    found.sources.insert(piece.source);
    int64_t run = 1;
    for (size_t l = piece.loops.size(); l-- > 0;) {
      const Piece::Loop& loop = piece.loops[l];
      if (loop.stride != run || loop.from != run) break;
      run *= loop.extent;
    }
    found.shortest = std::min(found.shortest, run);
  }
  return found;
}

// Returns elements that `open` opens when the first is read. Thread-safe.
BoxElements OpenedOnUse(ElementsOpener open) {
  struct Opened {
    std::once_flag once;
    BoxElements elements;
  };
  return [open = std::move(open), opened = std::make_shared<Opened>()](int64_t first, int64_t count,
                                                                       void* out) {
    std::call_once(opened->once, [&] { opened->elements = open(); });
    opened->elements(first, count, out);
  };
}

}  // namespace

FolderCopy::FolderCopy(const TensorFolder& from, const Plan& to, bool rescales)
    : folder_(from),
      from_(from.plan()),
      to_(to.graph.tensors),
      rescales_(rescales),
      is_wanted_again_(to.graph.replicas == Replicas::kFull),
      identity_(from.Identify()) {
  for (const Tensor& tensor : from_.graph.tensors) {
    const std::vector<FilePiece>& pieces = folder_.PiecesOf(tensor);
    watched_.emplace_back(pieces.size());
    transposes_ |= std::any_of(pieces.begin(), pieces.end(),
                               [](const FilePiece& piece) { return !piece.loops.empty(); });
  }
  FindOrigins(to);
}

void FolderCopy::FindOrigins(const Plan& to) {
  std::unordered_map<std::string_view, const Tensor*> stored;
  for (const Tensor& tensor : from_.graph.tensors) stored.emplace(tensor.path(), &tensor);
  std::optional<Rearrangement> rearrangement;
  for (const Tensor& tensor : to.graph.tensors) {
    Origin& origin = origins_.emplace_back();
    const auto same = stored.find(tensor.path());
    if (same != stored.end() && AreStoredAlike(*same->second, tensor) &&
        folder_.WideningOf(*same->second) == nullptr &&
        (!rescales_ || same->second->convention() == tensor.convention())) {
      origin.same = same->second;
      continue;
    }
    if (!rearrangement) rearrangement.emplace(from_.graph, to.graph);
    Tensor view = rearrangement->ViewOf(tensor);
    transposes_ |= Transposes(*view.view());
    std::optional<DType> dtype;
    for (const Piece& piece : view.view()->pieces) {
      const bool is_padding = piece.source == Piece::kPadding;
      const Tensor& of =
          is_padding ? tensor : from_.graph.tensors[static_cast<size_t>(piece.source)];
      // Elements are converted to another type after they are in place.
      if (!is_padding && !dtype) dtype = of.dtype();
      if (!Contains(origin.conventions, of.convention())) {
        origin.conventions.push_back(of.convention());
      }
    }
    if (dtype && *dtype != view.dtype()) view.Edit().dtype = *dtype;
    origin.view = std::make_unique<const Tensor>(std::move(view));
  }
}

Conventions FolderCopy::ConventionsOf(const Origin& origin, const BoxTask& task) const {
  Conventions found = {.all = origin.conventions};
  if (found.all.size() == 1) return found;
  const auto number_of = [&](const Convention& convention) {
    return static_cast<double>(std::ranges::find(found.all, convention) - found.all.begin());
  };
  // A view of the same shape, where each element is the number of its convention.
  View view = *origin.view->view();
  for (Piece& piece : view.pieces) piece.padding = number_of(task.tensor->convention());
  Tensor numbers = *origin.view;
  numbers.Edit().dtype = DType::u32;
  numbers.set_view(std::make_shared<const View>(std::move(view)));
  const auto filler =
      std::make_shared<const ViewFiller>(numbers, task.box, [&](const Tensor& stored) {
        Tensor constant;
        constant.Edit().dtype = DType::u32;
        constant.Edit().distribution = Constant{number_of(stored.convention())};
        return FillerOf(constant);
      });
  found.which = [filler](int64_t first, int64_t count, void* out) {
    filler->Fill(first, count, out);
  };
  return found;
}

const FolderCopy::Origin& FolderCopy::OriginOf(const BoxTask& task) const {
  return origins_[static_cast<size_t>(task.tensor - to_.data())];
}

std::shared_ptr<WatchedBox>& FolderCopy::WatchedAt(const Tensor& stored, size_t number) {
  return watched_[static_cast<size_t>(&stored - from_.graph.tensors.data())][number];
}

std::shared_ptr<WatchedBox> FolderCopy::Watch(const Tensor& stored, size_t number,
                                              int64_t cell_bytes, std::vector<BoxTask>* tasks,
                                              std::vector<Checked>* checked) {
  std::shared_ptr<WatchedBox>& watched = WatchedAt(stored, number);
  if (watched) return watched;
  const FilePiece& piece = folder_.PiecesOf(stored)[number];
  const int64_t element = StoredBytes(stored);
  watched =
      std::make_shared<WatchedBox>(piece, ElementCount(piece.box.shape) * element, cell_bytes);
  if (folder_.DigestsOf(stored) == nullptr) return watched;
  const auto found = std::make_shared<Digest>();
  const Widening* const widening = folder_.WideningOf(stored);
  BoxTask task = {widening == nullptr ? &stored : &widening->numbers(), piece.box, {}, found.get()};
  task.source = [watched, found, element](int64_t first, int64_t count, void* out) {
    InputFile file;
    watched->Read(&file, first * element, count * element, out);
  };
  tasks->push_back(std::move(task));
  checked->push_back({&stored, &piece, found});
  return watched;
}

void FolderCopy::Require(const Checked& box) {
  folder_.RequireUnchanged(*box.piece);
  if (!box.found) return;
  const std::vector<Digest>* const digests = folder_.DigestsOf(*box.tensor);
  if (digests == nullptr) {
    const std::lock_guard lock(mutex_);
    const auto [first, is_new] = found_.emplace(box.piece, *box.found);
    if (!is_new && first->second != *box.found) ThrowChanged(*box.piece);
    return;
  }
  const size_t number = static_cast<size_t>(box.piece - folder_.PiecesOf(*box.tensor).data());
  if (*box.found == (*digests)[number]) return;
  throw Damaged(
      folder_.path(),
      fmt::format("{}: the box of `{}` at [{}] has other data than was written", box.piece->file,
                  box.tensor->path(), fmt::join(box.piece->box.offset, ", ")));
}

void FolderCopy::CheckLater(const Tensor& stored, std::vector<Checked>* checked) const {
  for (const FilePiece& piece : folder_.PiecesOf(stored)) {
    checked->push_back({&stored, &piece, nullptr});
  }
  const Widening* const widening = folder_.WideningOf(stored);
  if (widening == nullptr) return;
  for (size_t part = Widening::kScales; part < Widening::kParts; ++part) {
    for (const FilePiece& piece : folder_.PiecesOf(*widening, part)) {
      checked->push_back({&stored, &piece, nullptr});
    }
  }
}

ElementsOpener FolderCopy::PartsOf(const Tensor& stored, int64_t cell_bytes,
                                   std::vector<BoxTask>* tasks, std::vector<Checked>* checked) {
  struct Part {
    const FilePiece& piece;
    std::pair<int64_t, int64_t> reach;  // its first element, and its end
    std::shared_ptr<WatchedBox> watched;
  };
  const Widening* const widening = folder_.WideningOf(stored);
  const Tensor& as_stored = widening == nullptr ? stored : widening->numbers();
  const std::vector<FilePiece>& pieces = folder_.PiecesOf(stored);
  const auto parts = std::make_shared<std::vector<Part>>();
  CheckLater(stored, checked);
  for (size_t p = 0; p < pieces.size(); ++p) {
    parts->push_back({pieces[p], ReachOf(pieces[p].box, as_stored.shape()), nullptr});
    if (cell_bytes == 0) continue;
    parts->back().watched = Watch(stored, p, CellOfAll(cell_bytes, from_.bytes), tasks, checked);
  }
  if (widening != nullptr && cell_bytes == 0) {
    return [elements = folder_.ElementsOf(stored)] { return elements; };
  }
  const ElementsOpener open = [this, parts, whole = WholeOf(as_stored.shape()),
                               element = InfoOf(as_stored.dtype()).bytes]() -> BoxElements {
    return [this, parts, whole, element,
            files = std::vector<std::shared_ptr<InputFile>>(parts->size())](
               int64_t first, int64_t count, void* out) mutable {
      for (size_t p = 0; p < files.size(); ++p) {
        const Part& part = (*parts)[p];
        if (part.reach.second <= first || part.reach.first >= first + count) continue;
        const auto read = [&](int64_t offset, int64_t bytes, void* to) {
          if (files[p] == nullptr) files[p] = open_files_.Open(part.piece.file);
          if (part.watched) return part.watched->Read(files[p].get(), offset, bytes, to);
          ReadPart(part.piece, files[p].get(), offset, bytes, to);
        };
        ReadPiece(part.piece.box, element, whole, first, count, out, read);
      }
    };
  };
  if (widening == nullptr) return open;
  return [this, widening, open] { return folder_.ElementsOf(*widening, open()); };
}

int64_t FolderCopy::StoredBytes(const Tensor& stored) const {
  const Widening* const widening = folder_.WideningOf(stored);
  return InfoOf(widening == nullptr ? stored.dtype() : widening->numbers().dtype()).bytes;
}

const FilePiece* FolderCopy::FindWhole(const BoxTask& task) const {
  const Tensor* const same = OriginOf(task).same;
  if (same == nullptr) return nullptr;
  const std::vector<FilePiece>& pieces = folder_.PiecesOf(*same);
  const auto whole = std::find_if(pieces.begin(), pieces.end(),
                                  [&](const FilePiece& piece) { return piece.box == task.box; });
  return whole == pieces.end() ? nullptr : &*whole;
}

std::vector<FolderCopy::PassTasks> FolderCopy::Separate(const Tensor& stored,
                                                        std::vector<BoxTask> tasks) {
  const std::vector<FilePiece>& pieces = folder_.PiecesOf(stored);
  std::list<PassTasks> cuts;
  for (BoxTask& task : tasks) {
    PassTasks cut;
    for (size_t p = 0; p < pieces.size(); ++p) {
      if (Overlap(pieces[p].box, task.box)) cut.pieces.insert(p);
    }
    cut.tasks.push_back(std::move(task));
    // Merges cuts that need elements of the same box, if the box is read as a whole.
    for (auto other = cuts.begin(); other != cuts.end();) {
      const bool meets = std::any_of(cut.pieces.begin(), cut.pieces.end(), [&](size_t p) {
        return !WatchedAt(stored, p) && other->pieces.contains(p);
      });
      if (!meets) {
        ++other;
        continue;
      }
      cut.pieces.merge(other->pieces);
      std::move(cut.tasks.begin(), cut.tasks.end(), std::back_inserter(other->tasks));
      cut.tasks = std::move(other->tasks);
      other = cuts.erase(other);
    }
    cuts.push_back(std::move(cut));
  }
  return {std::make_move_iterator(cuts.begin()), std::make_move_iterator(cuts.end())};
}

void FolderCopy::NeededBox::Add(const Box& box) {
  if (std::find(by.begin(), by.end(), box) != by.end()) return;
  by.push_back(box);
  missing -= SharedElements(piece->box, box);
}

BoxTask FolderCopy::Sweeping(const Tensor& stored, PassTasks cut, std::vector<Checked>* checked) {
  const int64_t element = InfoOf(stored.dtype()).bytes;
  std::vector<Sweep::Source> sources;
  for (const size_t p : cut.pieces) {
    const FilePiece& piece = folder_.PiecesOf(stored)[p];
    std::shared_ptr<WatchedBox>& watched = WatchedAt(stored, p);
    if (watched) {
      sources.push_back({&piece, watched, nullptr});
      checked->push_back({&stored, &piece, nullptr});
      continue;
    }
    NeededBox wanted(piece);
    int64_t run = wanted.missing;
    for (const BoxTask& task : cut.tasks) {
      wanted.Add(task.box);
      if (Overlap(piece.box, task.box)) run = std::min(run, RunLength(piece.box, task.box));
    }
    // No digest is needed if none is recorded and a part of the box is needed once.
    if (wanted.missing > 0 && !is_wanted_again_ && folder_.DigestsOf(stored) == nullptr) {
      sources.push_back({&piece, nullptr, nullptr});
      checked->push_back({&stored, &piece, nullptr});
      continue;
    }
    const auto found = std::make_shared<Digest>();
    checked->push_back({&stored, &piece, found});
    if (wanted.missing > 0 || is_wanted_again_) {
      watched = std::make_shared<WatchedBox>(piece, ElementCount(piece.box.shape) * element,
                                             CellBytes(run * element));
    }
    sources.push_back({&piece, watched, found});
  }
  const bool reads_alone =
      std::none_of(sources.begin(), sources.end(), [](const Sweep::Source& source) {
        return source.digest != nullptr || source.watched != nullptr;
      });
  // A box that is read alone needs no pass, which takes more memory.
  if (reads_alone && cut.tasks.size() == 1) {
    BoxTask task = std::move(cut.tasks.front());
    std::vector<const FilePiece*> pieces;
    for (const Sweep::Source& source : sources) pieces.push_back(source.piece);
    task.source = [this, pieces, element, box = task.box](int64_t first, int64_t count, void* out) {
      for (const FilePiece* const piece : pieces) {
        ReadPiece(piece->box, static_cast<int>(element), box, first, count, out,
                  [&](int64_t offset, int64_t bytes, void* to) {
                    ReadPart(*piece, open_files_.Open(piece->file).get(), offset, bytes, to);
                  });
      }
    };
    return task;
  }
  const BoxTask& any = cut.tasks.front();
  BoxTask task = {any.tensor, any.box, {}, nullptr};
  task.pass = std::make_shared<Sweep>(sources, std::move(cut.tasks));
  return task;
}

bool FolderCopy::IsEnough(const std::vector<BoxTask>& tasks) {
  for (const BoxTask& task : tasks) {
    const Tensor* const same = OriginOf(task).same;
    if (same == nullptr || FindWhole(task) != nullptr) continue;
    const std::vector<FilePiece>& pieces = folder_.PiecesOf(*same);
    for (size_t p = 0; p < pieces.size(); ++p) {
      if (!Overlap(pieces[p].box, task.box) || WatchedAt(*same, p)) continue;
      const auto [wanted, is_new] = wanted_.try_emplace(&pieces[p], pieces[p]);
      if (is_new) ++unfinished_;
      const bool was_missing = wanted->second.missing > 0;
      wanted->second.Add(task.box);
      if (was_missing && wanted->second.missing <= 0) --unfinished_;
    }
  }
  return unfinished_ == 0 || ++files_ == kFilesTogether;
}

BoxElements FolderCopy::OpenView(const Tensor& view, const Box& box, std::vector<BoxTask>* tasks,
                                 std::vector<Checked>* checked) {
  const bool transposes = Transposes(*view.view());
  const BoxRuns runs = RunsIn(view, box);
  const auto cell_of = [=, this, run = runs.shortest](const Tensor& stored) -> int64_t {
    const int64_t cell = transposes ? kSmallestCell : kLargestCell;
    if (folder_.DigestsOf(stored) != nullptr) return cell;
    // Without digests, short runs, as in a transposed tensor, are read alone, once for each place
    // that they go to. So are the scattered bytes that widened tensors read.
    const bool is_short = run * InfoOf(stored.dtype()).bytes < CellOfAll(cell, from_.bytes);
    const bool is_widened = folder_.WideningOf(stored) != nullptr;
    return is_widened || transposes || (is_short && !is_wanted_again_) ? 0 : cell;
  };
  const auto open = [=, this, &view](std::vector<BoxTask>* more, std::vector<Checked>* also) {
    const auto filler = std::make_shared<const ViewFiller>(view, box, [&](const Tensor& stored) {
      return std::make_unique<StoredFiller>(PartsOf(stored, cell_of(stored), more, also),
                                            InfoOf(stored.dtype()).bytes);
    });
    return [filler](int64_t first, int64_t count, void* out) { filler->Fill(first, count, out); };
  };
  std::vector<const Tensor*> sources;
  for (const int64_t source : runs.sources) {
    sources.push_back(&from_.graph.tensors[static_cast<size_t>(source)]);
  }
  if (std::ranges::any_of(sources, [&](const Tensor* of) { return cell_of(*of) > 0; })) {
    return open(tasks, checked);
  }
  for (const Tensor* const source : sources) CheckLater(*source, checked);
  return OpenedOnUse([open]() -> BoxElements {
    std::vector<BoxTask> no_tasks;
    std::vector<Checked> checked_later;
    return open(&no_tasks, &checked_later);
  });
}

std::function<void()> FolderCopy::Open(std::vector<BoxTask>* tasks) {
  std::vector<Checked> checked;
  std::vector<BoxTask> opened;
  std::map<const Tensor*, std::vector<BoxTask>> cut;  // tasks by the tensor that they come from
  std::unordered_map<const Digest*, int64_t> cut_at;  // number of tasks opened before each
  for (BoxTask& task : *tasks) {
    const Origin& origin = OriginOf(task);
    if (origin.same == nullptr) {
      task.source = OpenView(*origin.view, task.box, &opened, &checked);
      if (rescales_ && origin.conventions != std::vector{task.tensor->convention()}) {
        task.source = RescaleElements(std::move(task.source), origin.view->dtype(),
                                      ConventionsOf(origin, task), *task.tensor, &losses_);
      } else if (origin.view->dtype() != task.tensor->dtype()) {
        task.source = ConvertElements(std::move(task.source), origin.view->dtype(), *task.tensor);
      }
    } else if (const FilePiece* const whole = FindWhole(task)) {
      checked.push_back({origin.same, whole,
                         std::shared_ptr<const Digest>(std::shared_ptr<void>(), task.digest)});
      task.source = [whole, element = InfoOf(task.tensor->dtype()).bytes](
                        int64_t first, int64_t count, void* out) {
        InputFile file;
        ReadPart(*whole, &file, first * element, count * element, out);
      };
    } else {
      cut_at[task.digest] = std::ssize(opened);
      cut[origin.same].push_back(std::move(task));
      continue;
    }
    opened.push_back(std::move(task));
  }
  // A pass takes the place of its first task, so that writing files in order needs little memory.
  std::multimap<int64_t, BoxTask> passes;
  for (auto& [stored, boxes] : cut) {
    for (PassTasks& some : Separate(*stored, std::move(boxes))) {
      int64_t at = std::ssize(opened);
      for (const BoxTask& task : some.tasks) at = std::min(at, cut_at.at(task.digest));
      passes.emplace(at, Sweeping(*stored, std::move(some), &checked));
    }
  }
  tasks->clear();
  for (int64_t i = 0; i <= std::ssize(opened); ++i) {
    const auto [first, last] = passes.equal_range(i);
    for (auto pass = first; pass != last; ++pass) tasks->push_back(std::move(pass->second));
    if (i < std::ssize(opened)) tasks->push_back(std::move(opened[static_cast<size_t>(i)]));
  }
  wanted_.clear();
  unfinished_ = files_ = 0;
  return [this, checked] {
    for (const Checked& box : checked) Require(box);
  };
}

std::string ClaimOf(const TensorFolder& from, const std::string& layout) {
  return fmt::format("{}\n{}\n{}", ToHex(from.IdentifyAnywhere()), layout, from.part());
}

}  // namespace shardinit
