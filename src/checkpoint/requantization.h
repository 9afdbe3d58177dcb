// Writes a model in the quantized form of another folder, with the scales of that folder.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/file_tasks.h"
#include "checkpoint/folder.h"
#include "plan/plan.h"
#include "quantized/narrowing.h"
#include "quantized/widening.h"

namespace shardinit {

// Each tensor of the quantized folder `like` becomes a tensor of plan():
// - Numbers that are quantized get new codes where they have changed: see Narrow().
// - Scales, and all else that only a quantized model needs, are copied from `like`.
// - Other tensors are copied from `from`. If their type differs, elements that only differ from
//   `like` by a rounding to the type in `from` are copied from `like`.
//
// Both folders must outlive the object. Their files must not change while it is used.
class Requantization final : public TaskSource {
 public:
  // If `is_fresh`, computes new scales. Throws Error (kUsage) if the folders do not have the same
  // tensors, apart from dropped ones, or if the rule of new scales is not known.
  Requantization(const TensorFolder& from, const TensorFolder& like,
                 const std::vector<std::string>& dropped, bool is_fresh);

  // The stored tensors, not sharded.
  const Plan& plan() const { return plan_; }
  const NarrowingCounts& counts() const { return counts_; }
  int64_t quantized() const { return std::ssize(widenings_); }

  bool IsEnough(const std::vector<BoxTask>& /*tasks*/) override { return true; }
  std::function<void()> Open(std::vector<BoxTask>* tasks) override;

 private:
  void FindWidenings(const std::vector<std::string>& dropped);
  void RequireSameTensors(const std::vector<std::string>& dropped) const;
  const Tensor& NeedInFrom(const Tensor& tensor, const Shape& shape) const;
  // Returns the elements of a stored tensor of `like`, from the folders.
  BoxElements ElementsOf(const Tensor& stored, IsCounted is_counted);
  BoxElements NarrowedElements(const Widening& widening, IsCounted is_counted);
  // Returns the elements of a tensor of a folder, all of whose bytes have their recorded digest.
  BoxElements Checked(const TensorFolder& folder, const Tensor& tensor);

  std::shared_ptr<const FreshScales> FreshScalesOf(const Widening& widening);

  const TensorFolder &from_, &like_;
  const bool is_fresh_;
  std::map<std::string_view, const Tensor*> in_from_, in_like_;  // by path
  std::deque<Widening> widenings_;
  std::map<std::string, const Widening*> by_numbers_;  // by the path of their numbers
  // By the path of a part that is computed, such as the scales.
  std::map<std::string, std::pair<const Widening*, Widening::Part>> fresh_parts_;
  std::set<std::string> kept_;  // paths of tensors that `like` provides
  Plan plan_;
  NarrowingCounts counts_;
  std::mutex mutex_;
  std::set<const Tensor*> checked_;
  // Many boxes of a tensor share its scales.
  std::map<const Widening*, std::weak_ptr<const FreshScales>> fresh_;
};

}  // namespace shardinit
