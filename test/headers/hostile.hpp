// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

#pragma once

// What the headers must live with: macros that other people's headers and programs define.

// windows.h
#define min(a, b) headwise_must_not_use_min
#define max(a, b) headwise_must_not_use_max
#define small char
#define interface struct
#define near
#define far
#define IN
#define OUT
#define TRUE 1
#define FALSE 0
#define ERROR 0

// math.h, complex.h, termios.h, ctype.h
#define M_PI 3.14159265358979323846
#define I (1 / 0)
#define B0 (1 / 0)

// constants of kernels
#define N 1024
#define B 4
#define H 64
#define D 512
#define E 8
#define U 16
