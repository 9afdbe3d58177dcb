#include "kernels/orthogonal.h"

#include <algorithm>

#include "kernels/targets.h"

#define HWY_TARGET_INCLUDE "kernels/orthogonal-inl.h"
#include <hwy/foreach_target.h>

#include "kernels/orthogonal-inl.h"

namespace shardinit::kernels {

HWY_EXPORT(RunPanel);

void MakePanel(const PanelJob& job) { HWY_DYNAMIC_DISPATCH(RunPanel)(job); }

}  // namespace shardinit::kernels
