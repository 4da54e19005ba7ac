// Every width of wgmma, in the place of those that kernels of alpha/cuda use: before ptx_wgmma.cuh, which has PTX_F4.
#pragma once
#ifdef __CUDACC__
// For each N: the accumulators as text and as operands, and the numbers of the operands behind them.
#define PTX_D8 "%0,%1,%2,%3"
#define PTX_D16 PTX_D8 ",%4,%5,%6,%7"
#define PTX_D24 PTX_D16 ",%8,%9,%10,%11"
#define PTX_D32 PTX_D24 ",%12,%13,%14,%15"
#define PTX_D40 PTX_D32 ",%16,%17,%18,%19"
#define PTX_D48 PTX_D40 ",%20,%21,%22,%23"
#define PTX_D56 PTX_D48 ",%24,%25,%26,%27"
#define PTX_D64 PTX_D56 ",%28,%29,%30,%31"
#define PTX_D72 PTX_D64 ",%32,%33,%34,%35"
#define PTX_D80 PTX_D72 ",%36,%37,%38,%39"
#define PTX_D88 PTX_D80 ",%40,%41,%42,%43"
#define PTX_D96 PTX_D88 ",%44,%45,%46,%47"
#define PTX_D104 PTX_D96 ",%48,%49,%50,%51"
#define PTX_D112 PTX_D104 ",%52,%53,%54,%55"
#define PTX_D120 PTX_D112 ",%56,%57,%58,%59"
#define PTX_D128 PTX_D120 ",%60,%61,%62,%63"
#define PTX_D136 PTX_D128 ",%64,%65,%66,%67"
#define PTX_D144 PTX_D136 ",%68,%69,%70,%71"
#define PTX_D152 PTX_D144 ",%72,%73,%74,%75"
#define PTX_D160 PTX_D152 ",%76,%77,%78,%79"
#define PTX_D168 PTX_D160 ",%80,%81,%82,%83"
#define PTX_D176 PTX_D168 ",%84,%85,%86,%87"
#define PTX_D184 PTX_D176 ",%88,%89,%90,%91"
#define PTX_D192 PTX_D184 ",%92,%93,%94,%95"
#define PTX_D200 PTX_D192 ",%96,%97,%98,%99"
#define PTX_D208 PTX_D200 ",%100,%101,%102,%103"
#define PTX_D216 PTX_D208 ",%104,%105,%106,%107"
#define PTX_D224 PTX_D216 ",%108,%109,%110,%111"
#define PTX_D232 PTX_D224 ",%112,%113,%114,%115"
#define PTX_D240 PTX_D232 ",%116,%117,%118,%119"
#define PTX_D248 PTX_D240 ",%120,%121,%122,%123"
#define PTX_D256 PTX_D248 ",%124,%125,%126,%127"
#define PTX_O8 PTX_F4(0)
#define PTX_O16 PTX_O8, PTX_F4(4)
#define PTX_O24 PTX_O16, PTX_F4(8)
#define PTX_O32 PTX_O24, PTX_F4(12)
#define PTX_O40 PTX_O32, PTX_F4(16)
#define PTX_O48 PTX_O40, PTX_F4(20)
#define PTX_O56 PTX_O48, PTX_F4(24)
#define PTX_O64 PTX_O56, PTX_F4(28)
#define PTX_O72 PTX_O64, PTX_F4(32)
#define PTX_O80 PTX_O72, PTX_F4(36)
#define PTX_O88 PTX_O80, PTX_F4(40)
#define PTX_O96 PTX_O88, PTX_F4(44)
#define PTX_O104 PTX_O96, PTX_F4(48)
#define PTX_O112 PTX_O104, PTX_F4(52)
#define PTX_O120 PTX_O112, PTX_F4(56)
#define PTX_O128 PTX_O120, PTX_F4(60)
#define PTX_O136 PTX_O128, PTX_F4(64)
#define PTX_O144 PTX_O136, PTX_F4(68)
#define PTX_O152 PTX_O144, PTX_F4(72)
#define PTX_O160 PTX_O152, PTX_F4(76)
#define PTX_O168 PTX_O160, PTX_F4(80)
#define PTX_O176 PTX_O168, PTX_F4(84)
#define PTX_O184 PTX_O176, PTX_F4(88)
#define PTX_O192 PTX_O184, PTX_F4(92)
#define PTX_O200 PTX_O192, PTX_F4(96)
#define PTX_O208 PTX_O200, PTX_F4(100)
#define PTX_O216 PTX_O208, PTX_F4(104)
#define PTX_O224 PTX_O216, PTX_F4(108)
#define PTX_O232 PTX_O224, PTX_F4(112)
#define PTX_O240 PTX_O232, PTX_F4(116)
#define PTX_O248 PTX_O240, PTX_F4(120)
#define PTX_O256 PTX_O248, PTX_F4(124)
#define PTX_WIDTHS(X, t) \
  X(t, 8, 4, 5, 6, 7, 8, 9, 10, 11, 12) X(t, 16, 8, 9, 10, 11, 12, 13, 14, 15, 16) \
  X(t, 24, 12, 13, 14, 15, 16, 17, 18, 19, 20) X(t, 32, 16, 17, 18, 19, 20, 21, 22, 23, 24) \
  X(t, 40, 20, 21, 22, 23, 24, 25, 26, 27, 28) X(t, 48, 24, 25, 26, 27, 28, 29, 30, 31, 32) \
  X(t, 56, 28, 29, 30, 31, 32, 33, 34, 35, 36) X(t, 64, 32, 33, 34, 35, 36, 37, 38, 39, 40) \
  X(t, 72, 36, 37, 38, 39, 40, 41, 42, 43, 44) X(t, 80, 40, 41, 42, 43, 44, 45, 46, 47, 48) \
  X(t, 88, 44, 45, 46, 47, 48, 49, 50, 51, 52) X(t, 96, 48, 49, 50, 51, 52, 53, 54, 55, 56) \
  X(t, 104, 52, 53, 54, 55, 56, 57, 58, 59, 60) X(t, 112, 56, 57, 58, 59, 60, 61, 62, 63, 64) \
  X(t, 120, 60, 61, 62, 63, 64, 65, 66, 67, 68) X(t, 128, 64, 65, 66, 67, 68, 69, 70, 71, 72) \
  X(t, 136, 68, 69, 70, 71, 72, 73, 74, 75, 76) X(t, 144, 72, 73, 74, 75, 76, 77, 78, 79, 80) \
  X(t, 152, 76, 77, 78, 79, 80, 81, 82, 83, 84) X(t, 160, 80, 81, 82, 83, 84, 85, 86, 87, 88) \
  X(t, 168, 84, 85, 86, 87, 88, 89, 90, 91, 92) X(t, 176, 88, 89, 90, 91, 92, 93, 94, 95, 96) \
  X(t, 184, 92, 93, 94, 95, 96, 97, 98, 99, 100) X(t, 192, 96, 97, 98, 99, 100, 101, 102, 103, 104) \
  X(t, 200, 100, 101, 102, 103, 104, 105, 106, 107, 108) X(t, 208, 104, 105, 106, 107, 108, 109, 110, 111, 112) \
  X(t, 216, 108, 109, 110, 111, 112, 113, 114, 115, 116) X(t, 224, 112, 113, 114, 115, 116, 117, 118, 119, 120) \
  X(t, 232, 116, 117, 118, 119, 120, 121, 122, 123, 124) X(t, 240, 120, 121, 122, 123, 124, 125, 126, 127, 128) \
  X(t, 248, 124, 125, 126, 127, 128, 129, 130, 131, 132) X(t, 256, 128, 129, 130, 131, 132, 133, 134, 135, 136)
#endif
