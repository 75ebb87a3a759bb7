/* How a function of saguaro.h becomes an export. */
#ifndef SG_EXPORT_H
#define SG_EXPORT_H

#include "saguaro.h"

#define SG_EXPORT(name) __attribute__((export_name(#name)))
/* Exports `sg_name` through a wrapper with the same parameters, given as types with names and as names. */
#define SG_WRAP(result, name, parameters, arguments)                                                           \
    SG_EXPORT(sg_##name) result sg_wasm_##name parameters;                                                     \
    result sg_wasm_##name parameters { return sg_##name arguments; }
#define SG_WRAP_VOID(name, parameters, arguments)                                                              \
    SG_EXPORT(sg_##name) void sg_wasm_##name parameters;                                                       \
    void sg_wasm_##name parameters { sg_##name arguments; }

#endif
