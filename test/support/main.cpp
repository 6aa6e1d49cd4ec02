// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include <support/runner.hpp>

int main(int argc, char** argv) { return run_tests(argc, argv); }
