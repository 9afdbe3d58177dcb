// From a layout to the work that fills a file.
#pragma once

#include <functional>
#include <vector>

#include "base/output_file.h"
#include "formats/format.h"
#include "generate/workers.h"

namespace shardinit {

// Where the elements of boxes come from that are not generated.
using ElementSource = std::function<BoxElements(const Tensor& tensor, const Box& box)>;

// What else is to be done before a rank's file gets its name.
struct RankCheck {
  std::vector<BoxTask> tasks;
  // Called when all is done, with the digests of the rank's boxes; may throw.
  std::function<void(const std::vector<Digest>& digests)> done;
};

// Reserves the space of all of the file, if it has boxes, and writes its texts, unless CRCs stand
// in them.
void BeginFile(const FileLayout& layout, OutputFile& file);

// Its boxes, whose digests come in the same order, and their CRCs, where the layout has places for
// these; made by `source`, or generated if there is none. All of these must live until the tasks
// are done.
std::vector<BoxTask> TasksOf(const FileLayout& layout, const OutputFile& file,
                             const ElementSource& source, std::vector<Digest>* digests,
                             std::vector<uint32_t>* crcs = nullptr);

// When all boxes are made: puts their CRCs into the texts, if they stand there, and writes them.
void FinishFile(const std::vector<uint32_t>& crcs, FileLayout* layout, const OutputFile& file);

}  // namespace shardinit
