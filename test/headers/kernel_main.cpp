// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors

int first();
int second();

int main() {
  const int a = first();
  const int b = second();
  if (a == 2 && b == 2) return 77;
  return a != 0 || b != 0;
}
