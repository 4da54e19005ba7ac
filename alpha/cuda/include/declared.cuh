// A kernel takes what the host declares (runtime/kernel.py): arguments of another type fail when it is compiled.
// ALPHA_DECLARED has the entries of a module as entry/codes/entry/codes, codes being those of `struct` in Python. Where
// it has any, the bodies of other entries are left out: a module takes as long to compile as what is launched of it.
#pragma once

#ifndef ALPHA_DECLARED
#define ALPHA_DECLARED
#endif
#define ALPHA_TEXT_OF(...) #__VA_ARGS__
#define ALPHA_TEXT(...) ALPHA_TEXT_OF(__VA_ARGS__)
#define ALPHA_IS_LEFT_OUT(name) \
  (*ALPHA_TEXT(ALPHA_DECLARED) && !declared::codes_of(ALPHA_TEXT(ALPHA_DECLARED), #name))
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

// Tells whether the codes are those of these types: one each, those of the members of a struct, or the b of a block of
// bytes. Of a struct the size is compared, not the type of each member; it may end in padding.
template <typename... None> struct Types {
  static constexpr bool fit(const char* codes) { return !*codes || *codes == '/'; }
};
template <typename T, typename... More> struct Types<T, More...> {
  static constexpr bool fit(const char* codes) {
    if constexpr (Code<T>::value != 's') {
      return *codes == Code<T>::value && Types<More...>::fit(codes + 1);
    } else {
      if (*codes == 'b') return Types<More...>::fit(codes + 1);
      for (int at = 0, size = sizeof(T), align = alignof(T); at < size; codes++) {
        if (!*codes || *codes == '/') return false;
        int each = *codes == 'i' || *codes == 'I' || *codes == 'f' ? 4 : 8;
        at = (at + each - 1) / each * each + each;
        if ((at + align - 1) / align * align == size && Types<More...>::fit(codes + 1)) return true;
      }
      return false;
    }
  }
};

template <typename T> struct Kernel;
template <typename... Args> struct Kernel<void(Args...)> {
  static constexpr bool fits(const char* codes) { return !codes || Types<Args...>::fit(codes); }
};
template <> struct Kernel<void()> {
  static constexpr bool fits(const char* codes) { return !codes || *codes == 'v'; }
};
}  // namespace declared
