// Benchmarks the kernels and SHA-256 on one core. Measures, in this order:
// - values per second (items) for each instruction set, sampler, dtype and engine, written into a
//   tile that stays in the L2 cache; then the same for short rows;
// - SHA-256's bytes per second, for one tile and for two at once;
// - the core's clock, to convert all these times to cycles.
//
//   bench_kernels --benchmark_filter='AVX3/normal.*' --benchmark_repetitions=9
#include <benchmark/benchmark.h>

#include "base/sha256.h"
#include "kernels/kernels.h"
#include "rng/engines.h"

namespace shardinit {
namespace {

constexpr size_t kTileBytes = 256 << 10;

void FillTile(benchmark::State& state, const std::string& target, const Engine* engine,
              const Sampler& sampler, DType dtype, size_t row) {
  kernels::ForceTarget(target);
  std::vector<uint8_t> tile(kTileBytes);
  const size_t count = kTileBytes / static_cast<size_t>(InfoOf(dtype).bytes);
  const size_t rows = row == 0 ? 1 : count / row;
  uint64_t first = 0;
  for (auto _ : state) {
    kernels::FillRows(sampler, {.key = 42, .engine = engine}, first, 8 * row, rows, count / rows,
                      dtype, tile.data());
    benchmark::DoNotOptimize(tile.data());
    benchmark::ClobberMemory();
    first += count;
  }
  const auto values = static_cast<int64_t>(rows * (count / rows));
  state.SetItemsProcessed(state.iterations() * values);
}

void HashTiles(benchmark::State& state, bool two) {
  const std::vector<uint8_t> tiles(kTileBytes);
  const size_t size = kTileBytes / 2;
  Sha256 a, b;
  for (auto _ : state) {
    if (two) {
      Sha256::UpdateBoth(a, tiles.data(), size, b, tiles.data() + size, size);
    } else {
      a.Update(tiles.data(), kTileBytes);
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kTileBytes));
}

// Each addition depends on the one before, so each takes one cycle.
void CountCycles(benchmark::State& state) {
  constexpr int kAdditions = 1 << 16;
  uint64_t sum = 0;
  for (auto _ : state) {
    for (int i = 0; i < kAdditions; ++i) {
      sum += 3;
      benchmark::DoNotOptimize(sum);
    }
  }
  state.SetItemsProcessed(state.iterations() * kAdditions);
}

struct NamedSampler {
  const char* name;
  Sampler sampler;
};

const NamedSampler kSamplers[] = {
    {"bits", BitsSampler{}},
    {"uniform", MakeUniform(-0.02, 0.02)},
    {"normal", MakeNormal(0, 0.02)},
    {"truncated_2", MakeTruncatedNormal(0, 0.02, -2, 2)},
    {"truncated_3", MakeTruncatedNormal(0, 0.02, -3, 3)},
    {"truncated_100", MakeTruncatedNormal(0, 0.02, -100, 100)},
    {"truncated_5_6", MakeTruncatedNormal(0, 1, 5, 6)},
};

void Register() {
  for (const std::string& target : kernels::Targets()) {
    for (const NamedSampler& named : kSamplers) {
      const Sampler& sampler = named.sampler;
      for (const DTypeInfo& info : DTypes()) {
        if (!info.is_float()) continue;
        if (std::holds_alternative<BitsSampler>(sampler) && info.dtype != DType::f32) continue;
        for (const Engine* engine : Engines()) {
          if (engine->sample == nullptr) continue;
          std::string label = target + "/" + named.name + "/" + std::string(info.name);
          if (engine != &kPhilox4x32) label.append("/").append(engine->name);
          benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
            FillTile(state, target, engine, sampler, info.dtype, 0);
          });
        }
      }
    }
    for (const size_t row : {1, 4, 13, 64, 250, 1024}) {
      const std::string label = target + "/normal/bf16/rows_of_" + std::to_string(row);
      benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
        FillTile(state, target, &kPhilox4x32, MakeNormal(0, 0.02), DType::bf16, row);
      });
    }
  }
  benchmark::RegisterBenchmark("sha256", HashTiles, false);
  benchmark::RegisterBenchmark("sha256_of_two", HashTiles, true);
  benchmark::RegisterBenchmark("clock", CountCycles);
}

}  // namespace
}  // namespace shardinit

int main(int argc, char** argv) {
  shardinit::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
