"""The only room that imports fedml. So far it holds the stock federation that ``fedgmi bench federation`` measures."""
