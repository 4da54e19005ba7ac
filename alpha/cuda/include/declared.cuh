// A kernel takes what the host declares (runtime/kernel.py): arguments of another type fail when it is compiled.
// ALPHA_DECLARED has the entries of a module as entry/codes/entry/codes, codes being those of `struct` in Python.
#pragma once

#ifndef ALPHA_DECLARED
#define ALPHA_DECLARED
#endif
#define ALPHA_TEXT_OF(...) #__VA_ARGS__
#define ALPHA_TEXT(...) ALPHA_TEXT_OF(__VA_ARGS__)
#define ALPHA_KERNEL(name) \
  static_assert(declared::Kernel<decltype(name)>::fits(declared::codes_of(ALPHA_TEXT(ALPHA_DECLARED), #name)), \
                "the host declares other arguments for the kernel " #name);

namespace declared {
template <typename T> struct Code { static constexpr char value = 's'; };  // a struct by value
template <typename T> struct Code<T*> { static constexpr char value = 'P'; };
template <typename T> struct Code<T* __restrict__> { static constexpr char value = 'P'; };
template <> struct Code<int> { static constexpr char value = 'i'; };
template <> struct Code<unsigned> { static constexpr char value = 'I'; };
template <> struct Code<long> { static constexpr char value = 'q'; };
template <> struct Code<long long> { static constexpr char value = 'q'; };
template <> struct Code<unsigned long> { static constexpr char value = 'Q'; };
template <> struct Code<unsigned long long> { static constexpr char value = 'Q'; };
template <> struct Code<float> { static constexpr char value = 'f'; };

// Returns where the codes of an entry begin, or null where the host launches none of that name.
constexpr const char* codes_of(const char* text, const char* name) {
  while (*text) {
    const char *a = text, *b = name;
    for (; *b && *a == *b; a++) b++;
    if (!*b && *a == '/') return a + 1;
    for (int part = 0; part < 2; part++) {
      while (*text && *text != '/') text++;
      if (*text) text++;
    }
  }
  return nullptr;
}

// Takes an argument off the codes: its own, those of its members, or the b of a block of bytes.
constexpr bool take(const char*& codes, char code, int size) {
  if (code != 's' || *codes == 'b') return *codes && *codes++ == (code == 's' ? 'b' : code);
  for (int at = 0; at < size; codes++) {
    if (!*codes || *codes == '/') return false;
    int each = *codes == 'i' || *codes == 'I' || *codes == 'f' ? 4 : 8;
    at = (at + each - 1) / each * each + each;
  }
  return true;
}

template <typename T> struct Kernel;
template <typename... Args> struct Kernel<void(Args...)> {
  static constexpr bool fits(const char* codes) {
    return !codes || ((take(codes, Code<Args>::value, sizeof(Args)) && ...) && (!*codes || *codes == '/'));
  }
};
template <> struct Kernel<void()> {
  static constexpr bool fits(const char* codes) { return !codes || *codes == 'v'; }
};
}  // namespace declared
