// This comes before Highway wherever it makes code for several instruction sets.
#pragma once

// This makes the baseline without vector instructions the same with every compiler.
#define HWY_BROKEN_EMU128 1
