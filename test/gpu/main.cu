// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <support/gpu_main.hpp>

int main(int argc, char** argv) { return support::gpu_main(argc, argv); }
