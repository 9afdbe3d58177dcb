// Configures Highway. Include this before Highway in code for several instruction sets.
#pragma once

// Makes the baseline without vector instructions the same with every compiler.
#define HWY_BROKEN_EMU128 1
