// What PyCUDA links to and this driver does not have: each entry returns CUDA_ERROR_NOT_SUPPORTED.
#define NO(name) \
  int name() { return 801; }

// clang-format off
extern "C" {
NO(cuArray3DCreate_v2) NO(cuArray3DGetDescriptor_v2) NO(cuArrayCreate_v2) NO(cuArrayDestroy)
NO(cuArrayGetDescriptor_v2) NO(cuCtxAttach) NO(cuCtxDisablePeerAccess) NO(cuCtxEnablePeerAccess)
NO(cuCtxGetApiVersion) NO(cuCtxGetCacheConfig) NO(cuCtxGetLimit) NO(cuCtxGetSharedMemConfig) NO(cuCtxSetCacheConfig)
NO(cuCtxSetLimit) NO(cuCtxSetSharedMemConfig) NO(cuDeviceCanAccessPeer) NO(cuDeviceGetByPCIBusId)
NO(cuDeviceGetPCIBusId) NO(cuIpcCloseMemHandle) NO(cuIpcGetEventHandle) NO(cuIpcGetMemHandle) NO(cuIpcOpenEventHandle)
NO(cuIpcOpenMemHandle_v2) NO(cuLaunch) NO(cuLaunchGrid) NO(cuLaunchGridAsync) NO(cuLinkAddData_v2)
NO(cuLinkAddFile_v2) NO(cuLinkComplete) NO(cuLinkCreate_v2) NO(cuLinkDestroy) NO(cuMemAllocManaged)
NO(cuMemAllocPitch_v2) NO(cuMemGetAddressRange_v2) NO(cuMemHostGetDevicePointer_v2) NO(cuMemHostGetFlags)
NO(cuMemHostRegister_v2) NO(cuMemHostUnregister) NO(cuMemcpy2DAsync_v2) NO(cuMemcpy2DUnaligned_v2) NO(cuMemcpy2D_v2)
NO(cuMemcpy3DAsync_v2) NO(cuMemcpy3DPeer) NO(cuMemcpy3DPeerAsync) NO(cuMemcpy3D_v2) NO(cuMemcpyAtoA_v2)
NO(cuMemcpyAtoD_v2) NO(cuMemcpyAtoH_v2) NO(cuMemcpyDtoA_v2) NO(cuMemcpyHtoA_v2) NO(cuMemcpyPeer) NO(cuMemcpyPeerAsync)
NO(cuMemsetD2D16Async) NO(cuMemsetD2D16_v2) NO(cuMemsetD2D32Async) NO(cuMemsetD2D32_v2) NO(cuMemsetD2D8Async)
NO(cuMemsetD2D8_v2) NO(cuModuleGetSurfRef) NO(cuModuleGetTexRef) NO(cuParamSetSize)
NO(cuParamSetTexRef) NO(cuParamSetf) NO(cuParamSeti) NO(cuParamSetv) NO(cuProfilerInitialize) NO(cuProfilerStart)
NO(cuProfilerStop) NO(cuStreamAttachMemAsync) NO(cuSurfRefGetArray) NO(cuSurfRefSetArray) NO(cuTexRefCreate)
NO(cuTexRefDestroy) NO(cuTexRefGetAddressMode) NO(cuTexRefGetAddress_v2) NO(cuTexRefGetArray)
NO(cuTexRefGetFilterMode) NO(cuTexRefGetFlags) NO(cuTexRefGetFormat) NO(cuTexRefSetAddress2D_v3)
NO(cuTexRefSetAddressMode) NO(cuTexRefSetAddress_v2) NO(cuTexRefSetArray) NO(cuTexRefSetFilterMode)
NO(cuTexRefSetFlags) NO(cuTexRefSetFormat)
}
// clang-format on
