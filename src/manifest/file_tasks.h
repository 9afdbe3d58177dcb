// From a layout to the work that fills a file.
#pragma once

#include <functional>
#include <vector>

#include "base/output_file.h"
#include "formats/format.h"
#include "generate/workers.h"

namespace shardinit {

// Gives elements first … first + count - 1 of a box of a tensor, from several threads.
using ElementSource = std::function<void(const Tensor& tensor, const Box& box, int64_t first,
                                         int64_t count, void* out)>;

// Reserves the space of all of the file, if it has boxes, and writes its texts.
void BeginFile(const FileLayout& layout, OutputFile& file);

// Its boxes, whose digests come in the same order; made by `source`, or generated if there is none.
// All of these must live until the tasks are done.
std::vector<BoxTask> TasksOf(const FileLayout& layout, const OutputFile& file,
                             const ElementSource& source, std::vector<Digest>* digests);

}  // namespace shardinit
