// A kernel takes what the host declares (runtime/kernel.py): arguments of another type fail when it is compiled.
// ALPHA_CODES_<entry> are those of an entry of the module, as `struct` in Python has them. Where there are any, the
// bodies of other entries are left out: a module takes as long to compile as what is launched of it.
#pragma once

#ifndef ALPHA_DECLARED
#define ALPHA_DECLARED 0  // entries
#endif
#define ALPHA_TEXT_OF(text) #text
#define ALPHA_TEXT(text) ALPHA_TEXT_OF(text)
#define ALPHA_CODES(name) ALPHA_TEXT(ALPHA_CODES_##name)  // its own name, of an entry that the host does not launch
#define ALPHA_IS_LEFT_OUT(name) (ALPHA_DECLARED && *ALPHA_CODES(name) == 'A')
#define ALPHA_KERNEL(name) \
  static_assert(declared::Kernel<decltype(name)>::fits(ALPHA_CODES(name)), \
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

// Tells whether the codes are those of these types: one each, those of the members of a struct, or the b of a block of
// bytes. Of a struct the size is compared, not the type of each member; it may end in padding.
template <typename... None> struct Types {
  static constexpr bool fit(const char* codes) { return !*codes; }
};
template <typename T, typename... More> struct Types<T, More...> {
  static constexpr bool fit(const char* codes) {
    if constexpr (Code<T>::value != 's') {
      return *codes == Code<T>::value && Types<More...>::fit(codes + 1);
    } else {
      if (*codes == 'b') return Types<More...>::fit(codes + 1);
      for (int at = 0, size = sizeof(T), align = alignof(T); at < size; codes++) {
        if (!*codes) return false;
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
  static constexpr bool fits(const char* codes) { return *codes == 'A' || Types<Args...>::fit(codes); }
};
}  // namespace declared
