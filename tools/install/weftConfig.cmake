# find_package(weft) gives the target weft::weft.
if(NOT TARGET weft::weft)
  get_filename_component(_weft_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  add_library(weft::weft SHARED IMPORTED)
  set_target_properties(weft::weft PROPERTIES
    IMPORTED_LOCATION "${_weft_prefix}/lib/libweft.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_weft_prefix}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
  unset(_weft_prefix)
endif()
