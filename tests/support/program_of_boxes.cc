// Writes the program of any boxes of a spec's tensors; `shardinit program` supports only whole
// tensors and ranks:
//
//     program_of_boxes SPEC [f64] < BOXES > MODULE
//
// A line of BOXES is a path, an offset and a shape, such as `w 0,4 8,16`, or `w - -` for a scalar.
#include <iostream>
#include <sstream>

#include "base/diagnostics.h"
#include "plan/load.h"
#include "program/module.h"

namespace {

shardinit::Shape NumbersIn(const std::string& text) {
  shardinit::Shape numbers;
  if (text == "-") return numbers;
  std::istringstream in(text);
  for (std::string number; std::getline(in, number, ',');) numbers.push_back(std::stoll(number));
  return numbers;
}

}  // namespace

int main(int argc, char** argv) {
  shardinit::Diagnostics diagnostics;
  shardinit::PlanRequest request;
  request.spec.path = argv[1];
  const shardinit::Plan plan = shardinit::LoadPlan(request, diagnostics);
  shardinit::ProgramRequest program;
  if (argc > 2) program.arithmetic = shardinit::program::Arithmetic::kDouble;
  for (std::string path, offset, shape; std::cin >> path >> offset >> shape;) {
    const shardinit::Tensor* tensor = shardinit::Matching(plan.graph.tensors, path).front();
    program.boxes.push_back({tensor, {NumbersIn(offset), NumbersIn(shape)}});
  }
  std::cout << shardinit::WriteProgram(plan, program);
}
