// From a layout to the work that fills a file.
#pragma once

#include <functional>
#include <vector>

#include "base/output_file.h"
#include "formats/format.h"
#include "generate/workers.h"

namespace shardinit {

// Where the elements of boxes come from that are not generated: gives each task of a file its
// source, adds what else is to be read, and returns what is to be called when all of these are done
// and before the file gets its name, which throws if the elements are not the right ones.
using TaskSource = std::function<std::function<void()>(std::vector<BoxTask>* tasks)>;

// Reserves the space of all of the file, if it has boxes, and writes its texts, unless CRCs stand
// in them.
void BeginFile(const FileLayout& layout, OutputFile& file);

// Its boxes, whose digests come in the same order, and their CRCs, where the layout has places for
// these. All of these must live until the tasks are done.
std::vector<BoxTask> TasksOf(const FileLayout& layout, const OutputFile& file,
                             std::vector<Digest>* digests, std::vector<uint32_t>* crcs = nullptr);

// When all boxes are made: puts their CRCs into the texts, if they stand there, and writes them.
void FinishFile(const std::vector<uint32_t>& crcs, FileLayout* layout, const OutputFile& file);

}  // namespace shardinit
