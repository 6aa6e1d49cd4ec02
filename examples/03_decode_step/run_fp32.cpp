// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#include "run.hpp"

template demo::outcome demo::run_with<float>(const setting&);
