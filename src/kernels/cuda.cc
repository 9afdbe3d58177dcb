#include "kernels/cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>

#include "base/checked_math.h"
#include "base/embedded.h"
#include "base/error.h"
#include "kernels/cuda_driver.h"
#include "kernels/cuda_fill.h"
#include "rng/engines.h"
#include "rng/jax_threefry.h"

namespace shardinit::kernels {
namespace {

// The code requires this compute capability (cuda.cmake), which devices have from the A100 on.
constexpr int kLeastMajor = 8;
constexpr int64_t kWarp = 32, kThreads = 256,
                  kBlocksEach = 16;  // per block, and per multiprocessor

// The engines that have kernels.
struct CudaEngine {
  const Engine* engine;
  std::string_view name;  // prefix of the names of its kernels
  uint64_t (*key)(const Stream& stream);
};
constexpr CudaEngine kCudaEngines[] = {
    {&kPhilox4x32, "philox", [](const Stream& stream) { return stream.key; }},
    {&kJaxThreefry, "threefry", jax_threefry::KeyOfDraw},
};

std::string_view NameOf(const BitsSampler&) { return "bits"; }
std::string_view NameOf(const UniformSampler&) { return "uniform"; }
std::string_view NameOf(const NormalSampler&) { return "normal"; }
std::string_view NameOf(const TruncatedNormalSampler&) { return "truncated_normal"; }

// Returns a kernel of the current context, or null if the driver cannot compile it. The driver
// compiles a kernel when it is first requested.
CudaFunction KernelOf(const CudaDriver& driver, CudaContext context, const EmbeddedFile& file) {
  static std::mutex mutex;
  static std::map<std::pair<CudaContext, const EmbeddedFile*>, CudaFunction> functions;
  const std::lock_guard lock(mutex);
  const auto known = functions.find({context, &file});
  if (known != functions.end()) return known->second;
  CudaModule const module = driver.LoadModule(std::string(file.text));
  const std::string name(file.path.substr(0, file.path.find('.')));
  return functions[{context, &file}] =
             module == nullptr ? nullptr : driver.FunctionOf(module, name);
}

// Sets how many threads generate a run together, and returns the number of blocks of threads.
int64_t SetLanes(int64_t most_blocks, CudaFill* fill) {
  const auto runs = static_cast<int64_t>(fill->runs);
  // A run that does not begin at a multiple of 4 may need one more block of elements.
  const int64_t turns = CeilDiv(CeilDiv(static_cast<int64_t>(fill->length) + 3, 4), kCudaBlocks);
  if (runs == 1) {
    const int64_t blocks = std::min(CeilDiv(turns, kThreads), most_blocks);
    fill->lanes = static_cast<uint64_t>(blocks * kThreads);
    return blocks;
  }
  // Beginning a run takes as long as several turns. So only as many threads share a run as keep all
  // busy, but at least enough to fill a line of memory.
  const int64_t most_threads = std::bit_floor(static_cast<uint64_t>(most_blocks)) * kThreads;
  int64_t lanes = 1;
  while (lanes < turns && lanes < most_threads && (lanes < kWarp || runs * lanes < most_threads)) {
    lanes *= 2;
  }
  fill->lanes = static_cast<uint64_t>(lanes);
  const int64_t for_a_run = std::max<int64_t>(lanes / kThreads, 1);
  const int64_t blocks =
      std::min(CeilDiv(runs, std::max<int64_t>(kThreads / lanes, 1)) * for_a_run, most_blocks);
  return std::max<int64_t>(blocks / for_a_run, 1) * for_a_run;
}

}  // namespace

bool FillOnCuda(const Sampler& sampler, const Stream& stream, const Runs& runs, DType dtype,
                const CudaMemory& to) {
  const auto* const engine =
      std::find_if(std::begin(kCudaEngines), std::end(kCudaEngines),
                   [&](const CudaEngine& row) { return row.engine == stream.engine; });
  if (engine == std::end(kCudaEngines)) return false;
  const std::string path = fmt::format(
      "{}_{}.ptx", engine->name, std::visit([](const auto& s) { return NameOf(s); }, sampler));
  const std::span<const EmbeddedFile> files = CudaFiles();
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const EmbeddedFile& each) { return each.path == path; });
  if (file == files.end()) return false;
  Check(InfoOf(dtype).is_float(), "random numbers are floats");

  const CudaDriver& driver = CudaDriver::Load();
  const CudaDriver::Current current(driver, to.address);
  if (driver.Attribute(CudaDriver::kMajor, current.device()) < kLeastMajor) return false;
  CudaFunction const kernel = KernelOf(driver, current.context(), *file);
  if (kernel == nullptr) return false;
  const int64_t most_blocks =
      kBlocksEach * driver.Attribute(CudaDriver::kMultiprocessors, current.device());

  // A launch generates runs whose starts follow from two dimensions; larger boxes need several.
  const std::span<const Runs::Dimension> outer = runs.outer();
  const auto dimension = [&](size_t from_last) {
    return from_last < outer.size() ? outer[outer.size() - 1 - from_last] : Runs::Dimension{1, 0};
  };
  const int64_t together = dimension(0).extent * dimension(1).extent;
  const auto bytes = static_cast<uint64_t>(InfoOf(dtype).bytes);
  CudaFill fill{.outer_stride = static_cast<uint64_t>(dimension(1).stride),
                .inner_stride = static_cast<uint64_t>(dimension(0).stride),
                .length = static_cast<uint64_t>(runs.length()),
                .inner = static_cast<uint64_t>(dimension(0).extent),
                .runs = static_cast<uint64_t>(together),
                .key = engine->key(stream),
                .draw = stream.draw,
                .dtype = dtype};
  const int64_t blocks = SetLanes(most_blocks, &fill);
  for (int64_t run = 0; run < runs.count(); run += together) {
    fill.first = static_cast<uint64_t>(runs.Start(run));
    fill.out =
        reinterpret_cast<uint8_t*>(to.address + static_cast<uint64_t>(run) * fill.length * bytes);
    std::visit(
        [&](auto parameters) {
          void* arguments[] = {&fill, &parameters};
          driver.Launch(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(kThreads),
                        static_cast<CudaStream>(to.stream), arguments);
        },
        sampler);
  }
  return true;
}

void RepeatOnCuda(std::span<const uint8_t> element, uint64_t count, const CudaMemory& to) {
  const CudaDriver& driver = CudaDriver::Load();
  const CudaDriver::Current current(driver, to.address);
  uint64_t bits = 0;
  std::memcpy(&bits, element.data(), element.size());
  driver.Repeat(bits, static_cast<int>(element.size()), count, to.address,
                static_cast<CudaStream>(to.stream));
}

}  // namespace shardinit::kernels
