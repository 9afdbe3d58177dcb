// Replaces the functions that lay out HDF5 files. libshardinit writes no files, and HDF5, which has
// process-wide state, must not be loaded into its host.
#include "formats/hdf5/writer.h"

namespace shardinit::hdf5 {
namespace {

[[noreturn]] void Refuse() { throw Bug("libshardinit writes no HDF5"); }

}  // namespace

FileLayout LayOutRank(const Plan&, const RankPlan&, const Digest&) { Refuse(); }
FileLayout LayOutIndex(std::string, const Plan&, const Digest&) { Refuse(); }
FileLayout LayOutKerasFile(std::string, std::vector<FileBox>, DatasetNames) { Refuse(); }
void GiveBackMemory(size_t) {}

}  // namespace shardinit::hdf5
