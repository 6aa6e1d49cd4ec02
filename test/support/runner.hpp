// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

/// Runs the doctest cases that the program holds and closes with one line, `N passed, N failed`,
/// after a line `FAILED: name` for each failure. With a reason why they cannot run here, runs
/// none, counts them all as skipped and returns 77.
int run_tests(int argc, char** argv, const char* cannot_run = nullptr);
